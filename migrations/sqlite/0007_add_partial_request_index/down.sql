-- Makes the index of request ids hold every order again, for tests of the migrations.
DROP INDEX orders_by_request;
CREATE UNIQUE INDEX orders_by_request ON orders (request_id);

-- Restores the complete index of request ids, for tests of the migrations only.
DROP INDEX orders_by_request;
CREATE UNIQUE INDEX orders_by_request ON orders (request_id);

-- Drops the tables of the ledger, for tests of the migrations only: a ledger with orders is never
-- migrated down, no other store contains the messages of dead letters, and without its secrets an
-- installation cannot verify the request ids that it signed.
DROP TABLE secrets;
DROP TABLE tokens;
DROP TABLE operator_verbs;
DROP TABLE dead_requests;
DROP TABLE dead_letters;
DROP TABLE failed_requests;
DROP TABLE repairs;
DROP TABLE cursors;
DROP TABLE bars;
DROP TABLE payment_events;
DROP TABLE payments;
DROP TABLE order_events;
DROP TABLE quotas;
DROP TABLE orders;
DROP TABLE stock_changes;
DROP TABLE terms;
DROP TABLE skus;
DROP TABLE sale_phases;
DROP TABLE sales;

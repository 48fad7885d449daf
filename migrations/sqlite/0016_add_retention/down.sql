-- Removes the states of finished sales, for tests of the migrations only.
DROP INDEX payment_events_by_request;
ALTER TABLE sales DROP COLUMN retention_at_ms;
ALTER TABLE sales DROP COLUMN archive_digest;
ALTER TABLE sales DROP COLUMN retention;

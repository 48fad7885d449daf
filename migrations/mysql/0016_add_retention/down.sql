-- Removes the states of finished sales, for tests of the migrations only.
ALTER TABLE payment_events DROP KEY payment_events_by_request;
ALTER TABLE sales
    DROP COLUMN retention_at_ms,
    DROP COLUMN archive_digest,
    DROP COLUMN retention;

-- Adds what becomes of a finished sale: archived, then purged.

-- 0: kept, 1: archived, 2: sealed, 3: purging, 4: purged.
ALTER TABLE sales ADD COLUMN retention SMALLINT NOT NULL DEFAULT 0;
-- SHA-256 of the manifest of the archive, in hexadecimal digits; NULL: not archived.
ALTER TABLE sales ADD COLUMN archive_digest CHAR(64);
-- When the state was reached; NULL: kept.
ALTER TABLE sales ADD COLUMN retention_at_ms BIGINT;

-- Finds the reports about the payments of an order.
CREATE INDEX payment_events_by_request ON payment_events (request_id)
    WHERE request_id IS NOT NULL;

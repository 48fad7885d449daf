-- Adds what becomes of a finished sale: archived, then purged.
--
-- One statement per table, conditional, so that it can be repeated; see 0006.

-- retention: 0: kept, 1: archived, 2: sealed, 3: purging, 4: purged.
-- archive_digest: SHA-256 of the manifest of the archive, in hexadecimal digits; NULL: not archived.
-- retention_at_ms: when the state was reached; NULL: kept.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'sales' AND column_name = 'retention') = 0,
    'ALTER TABLE sales
        ADD COLUMN retention SMALLINT NOT NULL DEFAULT 0,
        ADD COLUMN archive_digest CHAR(64),
        ADD COLUMN retention_at_ms BIGINT',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

-- Finds the reports about the payments of an order.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'payment_events'
     AND index_name = 'payment_events_by_request') = 0,
    'ALTER TABLE payment_events ADD KEY payment_events_by_request (request_id)',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

-- Adds how long a request may stay queued, seconds; 0: without limit. A repeat of a migration that
-- was interrupted adds nothing twice.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'skus' AND column_name = 'queue_timeout_s')
        = 0,
    'ALTER TABLE skus ADD COLUMN queue_timeout_s INT NOT NULL DEFAULT 0',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

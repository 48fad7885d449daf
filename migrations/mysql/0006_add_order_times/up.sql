-- Adds the times of an order's way: with placed_at_ms they tell how long each part of it took.
-- published_at_ms: when the message that brought the order was published; NULL where no broker is
-- on the way. recorded_at_ms: when it was written, by the writer's clock; NULL in rows of versions
-- before this migration.
--
-- One statement, so that both are there or none; and none where they are there already. (Only
-- MariaDB knows ADD COLUMN IF NOT EXISTS.) Columns at the end are added without touching a row.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'orders'
     AND column_name = 'published_at_ms') = 0,
    'ALTER TABLE orders ADD COLUMN published_at_ms BIGINT, ADD COLUMN recorded_at_ms BIGINT',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

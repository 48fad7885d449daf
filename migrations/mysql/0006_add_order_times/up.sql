-- Adds the timeline columns of orders, for the duration of each stage since placed_at_ms.
-- published_at_ms: when the message with the intent was published; NULL without a broker.
-- recorded_at_ms: when the row was written, by the writer's clock; NULL in rows of versions before
-- this migration.
--
-- One statement, so that it adds both columns or none, and conditional, so that it can be repeated.
-- (Only MariaDB supports ADD COLUMN IF NOT EXISTS.) Adding columns at the end rewrites no row.
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

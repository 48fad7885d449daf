-- Adds the timeline columns of orders, for the duration of each stage since placed_at_ms.
-- When the message with the intent was published; NULL without a broker.
ALTER TABLE orders ADD COLUMN published_at_ms BIGINT;
-- When the row was written, by the writer's clock; NULL in rows of versions before this migration.
ALTER TABLE orders ADD COLUMN recorded_at_ms BIGINT;

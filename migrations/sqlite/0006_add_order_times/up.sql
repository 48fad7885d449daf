-- Adds the times of an order's way: with placed_at_ms they tell how long each part of it took.
-- When the message that brought the order was published; NULL where no broker is on the way.
ALTER TABLE orders ADD COLUMN published_at_ms BIGINT;
-- When it was written, by the writer's clock; NULL in rows of versions before this migration.
ALTER TABLE orders ADD COLUMN recorded_at_ms BIGINT;

-- Drops the times of an order's way, for tests of the migrations.
ALTER TABLE orders DROP COLUMN recorded_at_ms, DROP COLUMN published_at_ms;

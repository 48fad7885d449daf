-- Drops the times of an order's way, for tests of the migrations.
ALTER TABLE orders DROP COLUMN recorded_at_ms;
ALTER TABLE orders DROP COLUMN published_at_ms;

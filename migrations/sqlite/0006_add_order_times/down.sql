-- Drops the timeline columns of orders, for tests of the migrations only.
ALTER TABLE orders DROP COLUMN recorded_at_ms;
ALTER TABLE orders DROP COLUMN published_at_ms;

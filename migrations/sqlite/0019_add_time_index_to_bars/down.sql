-- Removes the index, for tests of the migrations only.
DROP INDEX bars_by_time;

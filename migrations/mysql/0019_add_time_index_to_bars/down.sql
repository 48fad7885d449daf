-- Removes the index, for tests of the migrations only.
ALTER TABLE bars DROP KEY bars_by_time;

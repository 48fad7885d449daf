-- Removes the limit of queued requests, for tests of the migrations only.
ALTER TABLE skus DROP COLUMN queue_timeout_s;

-- Adds how long a request may stay queued, seconds; 0: without limit.
ALTER TABLE skus ADD COLUMN queue_timeout_s INTEGER NOT NULL DEFAULT 0;

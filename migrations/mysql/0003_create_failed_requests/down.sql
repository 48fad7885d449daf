-- Drops the recorded failures, for tests of the migrations only.
DROP TABLE IF EXISTS failed_requests;

-- Drops the recorded failures, for tests of the migrations only.
DROP TABLE failed_requests;

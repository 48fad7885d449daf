-- Drops the recorded failures, for tests of the migrations.
DROP TABLE IF EXISTS failed_requests;

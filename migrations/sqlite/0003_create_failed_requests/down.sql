-- Drops the recorded failures, for tests of the migrations.
DROP TABLE failed_requests;

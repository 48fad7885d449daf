-- Drops the dead letters, for tests of the migrations: what is in them is nowhere else.
DROP TABLE dead_requests;
DROP TABLE dead_letters;

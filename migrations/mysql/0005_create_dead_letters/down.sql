-- Drops the dead letters, for tests of the migrations: what is in them is nowhere else.
DROP TABLE IF EXISTS dead_requests;
DROP TABLE IF EXISTS dead_letters;

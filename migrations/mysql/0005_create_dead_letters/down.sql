-- Drops the dead letters, for tests of the migrations only: no other store contains their messages.
DROP TABLE IF EXISTS dead_requests;
DROP TABLE IF EXISTS dead_letters;

-- Drops the dead letters, for tests of the migrations only: no other store contains their messages.
DROP TABLE dead_requests;
DROP TABLE dead_letters;

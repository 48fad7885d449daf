-- Drops tokens and secrets, for tests of the migrations only: without its secrets an installation
-- cannot verify the request ids that it signed.
DROP TABLE secrets;
DROP TABLE tokens;

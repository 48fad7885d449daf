-- Drops tokens and secrets, for tests of the migrations: without its secrets an installation cannot
-- check the request ids that it signed.
DROP TABLE IF EXISTS secrets;
DROP TABLE IF EXISTS tokens;

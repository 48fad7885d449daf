-- Drops orders and quotas, for tests of the migrations: a ledger with orders has no way back.
DROP TABLE IF EXISTS quotas;
DROP TABLE IF EXISTS orders;

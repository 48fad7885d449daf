-- Drops orders and quotas, for tests of the migrations: a ledger with orders has no way back.
DROP TABLE quotas;
DROP TABLE orders;

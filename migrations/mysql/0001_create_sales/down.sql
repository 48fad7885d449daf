-- Drops sales and SKUs, for tests of the migrations: a ledger with orders has no way back.
DROP TABLE IF EXISTS skus;
DROP TABLE IF EXISTS sales;

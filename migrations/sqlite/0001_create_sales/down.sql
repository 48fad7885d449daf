-- Drops sales and SKUs, for tests of the migrations: a ledger with orders has no way back.
DROP TABLE skus;
DROP TABLE sales;

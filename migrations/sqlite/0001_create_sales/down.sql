-- Drops sales and SKUs, for tests of the migrations only: a ledger with orders is never migrated
-- down.
DROP TABLE skus;
DROP TABLE sales;

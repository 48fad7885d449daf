-- Drops sales and SKUs, for tests of the migrations only: a ledger with orders is never migrated
-- down.
DROP TABLE IF EXISTS skus;
DROP TABLE IF EXISTS sales;

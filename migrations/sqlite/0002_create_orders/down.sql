-- Drops orders and quotas, for tests of the migrations only: a ledger with orders is never migrated
-- down.
DROP TABLE quotas;
DROP TABLE orders;

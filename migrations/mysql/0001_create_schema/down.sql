-- Drops the tables of the ledger, for tests of the migrations only: a ledger with orders is never
-- migrated down, no other store contains the messages of dead letters, and without its secrets an
-- installation cannot verify the request ids that it signed.
DROP TABLE IF EXISTS secrets;
DROP TABLE IF EXISTS tokens;
DROP TABLE IF EXISTS operator_verbs;
DROP TABLE IF EXISTS dead_requests;
DROP TABLE IF EXISTS dead_letters;
DROP TABLE IF EXISTS failed_requests;
DROP TABLE IF EXISTS repairs;
DROP TABLE IF EXISTS cursors;
DROP TABLE IF EXISTS bars;
DROP TABLE IF EXISTS payment_events;
DROP TABLE IF EXISTS payments;
DROP TABLE IF EXISTS order_events;
DROP TABLE IF EXISTS quotas;
DROP TABLE IF EXISTS orders;
DROP TABLE IF EXISTS stock_changes;
DROP TABLE IF EXISTS terms;
DROP TABLE IF EXISTS skus;
DROP TABLE IF EXISTS sale_phases;
DROP TABLE IF EXISTS sales;

-- Removes the look-up of payments, for tests of the migrations only.
DROP INDEX payment_events_unmatched;
DROP INDEX payments_by_state;
ALTER TABLE payment_events DROP COLUMN attempt;

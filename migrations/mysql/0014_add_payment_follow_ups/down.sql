-- Removes the look-up of payments, for tests of the migrations only.
ALTER TABLE payments DROP KEY payments_by_state;
ALTER TABLE payment_events DROP KEY payment_events_unmatched, DROP COLUMN attempt;

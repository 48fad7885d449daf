-- Adds what finds payments that wait for a provider or for an operator.

-- The attempt that the report names; NULL: none, or a report of versions before 0014.
ALTER TABLE payment_events ADD COLUMN attempt VARCHAR(96);

-- Finds the payments in one state in the order of their key.
CREATE INDEX payments_by_state ON payments (state, sku_no, buyer_id, request_id, attempt_no);

-- Finds the reports of no known attempt (outcome 8), oldest first.
CREATE INDEX payment_events_unmatched ON payment_events (outcome, at_ms, event_id)
    WHERE outcome = 8;

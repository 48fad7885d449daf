-- Adds what finds payments that wait for a provider or for an operator.
--
-- One statement per table, conditional, so that it can be repeated; see 0006.

-- attempt: the attempt that the report names; NULL: none, or a report of versions before 0014.
-- payment_events_unmatched finds the reports of no known attempt (outcome 8), oldest first.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'payment_events'
     AND column_name = 'attempt') = 0,
    'ALTER TABLE payment_events
        ADD COLUMN attempt VARCHAR(96),
        ADD KEY payment_events_unmatched (outcome, at_ms, event_id)',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

-- Finds the payments in one state in the order of their key.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'payments'
     AND index_name = 'payments_by_state') = 0,
    'ALTER TABLE payments
        ADD KEY payments_by_state (state, sku_no, buyer_id, request_id, attempt_no)',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

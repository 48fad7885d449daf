-- Adds the state to the indexes of what is due: a search for one state reads no rows of the others,
-- which after a sale are all its unpaid orders. The number of indexes stays the same.
--
-- One statement per table, conditional, so that it can be repeated; see 0006.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'orders'
     AND index_name = 'orders_due' AND column_name = 'state') = 0,
    'ALTER TABLE orders DROP KEY orders_due, ADD KEY orders_due (state, due_ms)',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'payments'
     AND index_name = 'payments_refund_due' AND column_name = 'state') = 0,
    'ALTER TABLE payments
        DROP KEY payments_refund_due,
        ADD KEY payments_refund_due (state, refund_due_ms)',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

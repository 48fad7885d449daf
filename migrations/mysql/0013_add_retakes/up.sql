-- Adds the purchases with late money, and the events of money that is to be paid back.
--
-- One statement per table, conditional, so that it can be repeated; see 0006.

-- State 6 is retaking; its refund_due_ms is when the money was received.
ALTER TABLE payments
    DROP CONSTRAINT payments_state_known,
    ADD CONSTRAINT payments_state_known CHECK (state BETWEEN 0 AND 6);

-- exempt_id: the one request of the buyer that the bar does not apply to.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'bars' AND column_name = 'exempt_id') = 0,
    'ALTER TABLE bars ADD COLUMN exempt_id BIGINT',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

-- unfulfilled 1: the order had ended before, and money of it is to be paid back.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'order_events'
       AND column_name = 'unfulfilled') = 0,
    'ALTER TABLE order_events ADD COLUMN unfulfilled SMALLINT NOT NULL DEFAULT 0',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

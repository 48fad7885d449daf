-- Adds who changed what, and why; which payment reports an operator has resolved; and by what dead
-- letters are searched. Each statement can be repeated; see 0006.

-- The verbs of operators that changed something, each written in the transaction of its change.
CREATE TABLE IF NOT EXISTS operator_verbs (
    verb_no  INTEGER NOT NULL AUTO_INCREMENT PRIMARY KEY,
    -- What was changed: sale:<sale_id>, payment:<id>, letter:<number>.
    subject  VARCHAR(320) NOT NULL,
    verb     VARCHAR(32) NOT NULL,
    -- The name of the token.
    operator VARCHAR(64) NOT NULL,
    reason   VARCHAR(1000),
    at_ms    BIGINT NOT NULL,
    -- For the verbs of one subject, newest first.
    KEY operator_verbs_by_subject (subject, verb_no)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- When an operator resolved an unmatched report; NULL: it waits.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'payment_events'
     AND column_name = 'resolved_at_ms') = 0,
    'ALTER TABLE payment_events ADD COLUMN resolved_at_ms BIGINT',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

-- NULL in rows of versions before 0017.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'dead_requests'
     AND column_name = 'sku_no') = 0,
    'ALTER TABLE dead_requests ADD COLUMN sku_no INTEGER, ADD COLUMN buyer_id BIGINT',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

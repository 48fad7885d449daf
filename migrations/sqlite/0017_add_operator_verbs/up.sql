-- Adds who changed what, and why; which payment reports an operator has resolved; and by what dead
-- letters are searched.

-- The verbs of operators that changed something, each written in the transaction of its change.
CREATE TABLE operator_verbs (
    verb_no  INTEGER PRIMARY KEY AUTOINCREMENT,
    -- What was changed: sale:<sale_id>, payment:<id>, letter:<number>.
    subject  VARCHAR(320) NOT NULL,
    verb     VARCHAR(32) NOT NULL,
    -- The name of the token.
    operator VARCHAR(64) NOT NULL,
    reason   VARCHAR(1000),
    at_ms    BIGINT NOT NULL
);

-- For the verbs of one subject, newest first.
CREATE INDEX operator_verbs_by_subject ON operator_verbs (subject, verb_no);

-- When an operator resolved an unmatched report; NULL: it waits.
ALTER TABLE payment_events ADD COLUMN resolved_at_ms BIGINT;

-- NULL in rows of versions before 0017.
ALTER TABLE dead_requests ADD COLUMN sku_no INTEGER;
ALTER TABLE dead_requests ADD COLUMN buyer_id BIGINT;

-- Adds the purchases with late money, and the events of money that is to be paid back.
--
-- State 6 is retaking. In SQLite a changed constraint requires a new table.
CREATE TABLE payments_copy (
    sku_no            INTEGER NOT NULL,
    buyer_id          BIGINT NOT NULL,
    request_id        BIGINT NOT NULL,
    attempt_no        INTEGER NOT NULL,
    provider          VARCHAR(32) NOT NULL,
    -- NULL: the provider's answer to the start is not known yet.
    payment_id        VARCHAR(255),
    url               TEXT,
    price             BIGINT NOT NULL,
    currency          CHAR(3) NOT NULL,
    state             SMALLINT NOT NULL,
    -- NULL: no money was received.
    received          BIGINT,
    received_currency CHAR(3),
    refunded_total    BIGINT NOT NULL,
    refund_attempts   INTEGER NOT NULL,
    -- When to try the refund next; in state 6, when the money was received; NULL otherwise.
    refund_due_ms     BIGINT,
    -- Why the provider refused the refund.
    reason            VARCHAR(255),
    PRIMARY KEY (sku_no, buyer_id, request_id, attempt_no),
    UNIQUE (provider, payment_id),
    CHECK (state BETWEEN 0 AND 6),
    -- A second guard of MoneyAccounted.
    CHECK (refunded_total >= 0 AND refunded_total <= COALESCE(received, 0))
) WITHOUT ROWID;

INSERT INTO payments_copy
    (sku_no, buyer_id, request_id, attempt_no, provider, payment_id,
     url, price, currency, state, received, received_currency,
     refunded_total, refund_attempts, refund_due_ms, reason)
SELECT sku_no, buyer_id, request_id, attempt_no, provider, payment_id,
     url, price, currency, state, received, received_currency,
     refunded_total, refund_attempts, refund_due_ms, reason
FROM payments ORDER BY sku_no, buyer_id, request_id, attempt_no;

DROP TABLE payments;
ALTER TABLE payments_copy RENAME TO payments;

CREATE INDEX payments_refund_due ON payments (refund_due_ms) WHERE refund_due_ms IS NOT NULL;

-- The one request of the buyer that the bar does not apply to.
ALTER TABLE bars ADD COLUMN exempt_id BIGINT;

-- 1: the order had ended before, and money of it is to be paid back.
ALTER TABLE order_events ADD COLUMN unfulfilled SMALLINT NOT NULL DEFAULT 0;

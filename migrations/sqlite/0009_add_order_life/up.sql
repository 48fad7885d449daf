-- Adds what orders need after their placement: versions, deadlines, events, payments and bars.
--
-- Orders of earlier versions get no deadline (due_ms is NULL): their pay_by_ms was never enforced,
-- began when the request arrived, and no buyer had a way to pay, so that a deadline would end all
-- of them at once. They keep counting for the limit.
--
-- In SQLite a changed constraint requires a new table.
CREATE TABLE orders_copy (
    sku_no       INTEGER NOT NULL,
    buyer_id     BIGINT NOT NULL,
    -- 0 under one_per_buyer, so that the key enforces the limit; the request id otherwise, and after
    -- an end that returned the limit.
    slot         BIGINT NOT NULL,
    request_id   BIGINT NOT NULL,
    epoch        BIGINT NOT NULL,
    quantity     INTEGER NOT NULL,
    amount       BIGINT NOT NULL,
    state        SMALLINT NOT NULL,
    placed_at_ms BIGINT NOT NULL,
    -- The deadline that the buyer sees; 0: none.
    pay_by_ms    BIGINT NOT NULL,
    trace_id     BLOB NOT NULL,
    -- When the message with the intent was published; NULL without a broker.
    published_at_ms BIGINT,
    -- When the row was written, by the writer's clock; NULL in rows of versions before 0006.
    recorded_at_ms BIGINT,
    -- The number of changes since the placement.
    version      INTEGER NOT NULL DEFAULT 0,
    -- When the order ends unless it is paid; NULL: paid, ended or without a deadline.
    due_ms       BIGINT,
    -- 1: counts for the buyer's limit.
    counts_for_limit SMALLINT NOT NULL DEFAULT 1,
    PRIMARY KEY (sku_no, buyer_id, slot),
    -- No foreign key to skus: it would cost a look-up per order. The UPDATE of the stock, which
    -- finds no row, rejects an order of an unknown SKU.
    CHECK (quantity > 0),
    CHECK (state BETWEEN 0 AND 5)
) WITHOUT ROWID;

INSERT INTO orders_copy
    (sku_no, buyer_id, slot, request_id, epoch, quantity, amount, state, placed_at_ms, pay_by_ms,
     trace_id, published_at_ms, recorded_at_ms)
SELECT sku_no, buyer_id, slot, request_id, epoch, quantity, amount, state, placed_at_ms, pay_by_ms,
     trace_id, published_at_ms, recorded_at_ms
FROM orders ORDER BY sku_no, buyer_id, slot;

DROP TABLE orders;
ALTER TABLE orders_copy RENAME TO orders;

CREATE UNIQUE INDEX orders_by_request ON orders (request_id) WHERE slot <> 0;

CREATE INDEX orders_due ON orders (due_ms) WHERE due_ms IS NOT NULL;

-- The states after which an order stops counting for its buyer's limit, one bit per state; 12:
-- timed_out and cancelled.
ALTER TABLE skus ADD COLUMN slot_returns SMALLINT NOT NULL DEFAULT 12;
ALTER TABLE skus ADD COLUMN ends_max SMALLINT NOT NULL DEFAULT 3;
-- ISO 4217.
ALTER TABLE sales ADD COLUMN currency CHAR(3) NOT NULL DEFAULT 'CNY';

-- One row per change of an order, written in the transaction of the change. A placement writes one
-- row per transaction, not per order: version 0 of its first order.
CREATE TABLE order_events (
    request_id BIGINT NOT NULL,
    -- The order's version after the change: unique, so that a change happens once.
    version    INTEGER NOT NULL,
    sku_no     INTEGER NOT NULL,
    buyer_id   BIGINT NOT NULL,
    -- The order's state after the change.
    kind       SMALLINT NOT NULL,
    at_ms      BIGINT NOT NULL,
    -- The order's deadline after the change.
    due_ms     BIGINT,
    -- buyer, timer, provider or operator:<name>.
    actor      VARCHAR(80) NOT NULL,
    reason     VARCHAR(255),
    payment_id VARCHAR(255),
    -- 1: the order stopped counting for its buyer's limit.
    limit_back SMALLINT NOT NULL,
    -- 1, or the number of orders of a placement.
    num_orders INTEGER NOT NULL,
    -- The orders of a placement, 20 bytes each: SKU, buyer, request. NULL: any other change.
    placed     BLOB,
    -- Given after the commit; the last number of the orders of a placement. NULL: not given yet.
    feed_no    BIGINT,
    PRIMARY KEY (request_id, version),
    CHECK (kind BETWEEN 0 AND 5)
) WITHOUT ROWID;

-- Finds the rows without a number in an order in which each order's versions ascend.
CREATE INDEX order_events_by_feed ON order_events (feed_no, version);

-- Payment attempts, by the primary key of their orders.
CREATE TABLE payments (
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
    -- When to try the refund next; NULL: no refund is due.
    refund_due_ms     BIGINT,
    -- Why the provider refused the refund.
    reason            VARCHAR(255),
    PRIMARY KEY (sku_no, buyer_id, request_id, attempt_no),
    UNIQUE (provider, payment_id),
    CHECK (state BETWEEN 0 AND 5),
    -- A second guard of MoneyAccounted.
    CHECK (refunded_total >= 0 AND refunded_total <= COALESCE(received, 0))
) WITHOUT ROWID;

CREATE INDEX payments_refund_due ON payments (refund_due_ms) WHERE refund_due_ms IS NOT NULL;

-- The reports of providers: a report has its effect once.
CREATE TABLE payment_events (
    provider       VARCHAR(32) NOT NULL,
    event_id       VARCHAR(255) NOT NULL,
    payment_id     VARCHAR(255) NOT NULL,
    -- NULL: no attempt has this payment id.
    request_id     BIGINT,
    outcome        SMALLINT NOT NULL,
    -- The report; NULL: it says that no money was received.
    received       BIGINT,
    currency       CHAR(3),
    refunded_total BIGINT NOT NULL,
    at_ms          BIGINT NOT NULL,
    PRIMARY KEY (provider, event_id),
    CHECK (outcome BETWEEN 0 AND 8)
) WITHOUT ROWID;

-- Buyers who may not order in a sale any more: one row for each SKU of the sale, so that a placement
-- finds it by the key of its order.
CREATE TABLE bars (
    sku_no     INTEGER NOT NULL,
    buyer_id   BIGINT NOT NULL,
    -- The order that timed out.
    request_id BIGINT NOT NULL,
    at_ms      BIGINT NOT NULL,
    PRIMARY KEY (sku_no, buyer_id)
) WITHOUT ROWID;

-- How far each reader of the feed of order events has come.
CREATE TABLE cursors (
    name    VARCHAR(64) NOT NULL PRIMARY KEY,
    feed_no BIGINT NOT NULL
) WITHOUT ROWID;

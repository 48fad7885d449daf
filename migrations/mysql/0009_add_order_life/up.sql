-- Adds what orders need after their placement: versions, deadlines, events, payments and bars.
--
-- Orders of earlier versions get no deadline (due_ms is NULL): their pay_by_ms was never enforced,
-- began when the request arrived, and no buyer had a way to pay, so that a deadline would end all
-- of them at once. They keep counting for the limit.
--
-- One statement per table, conditional, so that it can be repeated; see 0006.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'orders' AND column_name = 'version') = 0,
    'ALTER TABLE orders
        ADD COLUMN version INTEGER NOT NULL DEFAULT 0,
        ADD COLUMN due_ms BIGINT,
        ADD COLUMN counts_for_limit SMALLINT NOT NULL DEFAULT 1,
        ADD KEY orders_due (due_ms),
        DROP CONSTRAINT orders_state_known,
        ADD CONSTRAINT orders_state_known CHECK (state BETWEEN 0 AND 5)',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

-- slot_returns: the states after which an order stops counting for its buyer's limit, one bit per
-- state; 12: timed_out and cancelled.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'skus' AND column_name = 'ends_max') = 0,
    'ALTER TABLE skus
        ADD COLUMN slot_returns SMALLINT NOT NULL DEFAULT 12,
        ADD COLUMN ends_max SMALLINT NOT NULL DEFAULT 3',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

-- ISO 4217.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'sales' AND column_name = 'currency') = 0,
    'ALTER TABLE sales ADD COLUMN currency CHAR(3) NOT NULL DEFAULT ''CNY''',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

-- One row per change of an order, written in the transaction of the change. A placement writes one
-- row per transaction, not per order: version 0 of its first order.
CREATE TABLE IF NOT EXISTS order_events (
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
    placed     MEDIUMBLOB,
    -- Given after the commit; the last number of the orders of a placement. NULL: not given yet.
    feed_no    BIGINT,
    PRIMARY KEY (request_id, version),
    -- Finds the rows without a number in an order in which each order's versions ascend.
    KEY order_events_by_feed (feed_no, version),
    CONSTRAINT order_events_kind_known CHECK (kind BETWEEN 0 AND 5)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Payment attempts, by the primary key of their orders.
CREATE TABLE IF NOT EXISTS payments (
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
    UNIQUE KEY payments_by_id (provider, payment_id),
    KEY payments_refund_due (refund_due_ms),
    CONSTRAINT payments_state_known CHECK (state BETWEEN 0 AND 5),
    -- A second guard of MoneyAccounted.
    CONSTRAINT payments_refunds_received CHECK (refunded_total >= 0 AND refunded_total <= COALESCE(received, 0))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The reports of providers: a report has its effect once.
CREATE TABLE IF NOT EXISTS payment_events (
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
    CONSTRAINT payment_events_outcome_known CHECK (outcome BETWEEN 0 AND 8)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Buyers who may not order in a sale any more: one row for each SKU of the sale, so that a placement
-- finds it by the key of its order.
CREATE TABLE IF NOT EXISTS bars (
    sku_no     INTEGER NOT NULL,
    buyer_id   BIGINT NOT NULL,
    -- The order that timed out.
    request_id BIGINT NOT NULL,
    at_ms      BIGINT NOT NULL,
    PRIMARY KEY (sku_no, buyer_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How far each reader of the feed of order events has come.
CREATE TABLE IF NOT EXISTS cursors (
    name    VARCHAR(64) NOT NULL PRIMARY KEY,
    feed_no BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

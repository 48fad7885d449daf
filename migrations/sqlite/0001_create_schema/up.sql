-- Creates the tables of the ledger.

-- Timed offers.
CREATE TABLE sales (
    sale_no         INTEGER PRIMARY KEY AUTOINCREMENT,
    sale_id         VARCHAR(64) NOT NULL UNIQUE,
    title           VARCHAR(200) NOT NULL,
    starts_at_ms    BIGINT NOT NULL,
    ends_at_ms      BIGINT NOT NULL,
    phase           SMALLINT NOT NULL,
    -- The number of the latest opening, from 1; 0: never opened.
    epoch           BIGINT NOT NULL,
    opened_at_ms    BIGINT NOT NULL,
    closed_at_ms    BIGINT,
    created_at_ms   BIGINT NOT NULL,
    -- ISO 4217.
    currency        CHAR(3) NOT NULL DEFAULT 'CNY',
    -- 1: a purchase requires a ticket.
    ticket_required SMALLINT NOT NULL DEFAULT 0,
    -- 0: kept, 1: archived, 2: sealed, 3: purging, 4: purged.
    retention       SMALLINT NOT NULL DEFAULT 0,
    -- SHA-256 of the manifest of the archive, in hexadecimal digits; NULL: not archived.
    archive_digest  CHAR(64),
    -- When the state of the retention was reached; NULL: kept.
    retention_at_ms BIGINT,
    CHECK (phase BETWEEN 0 AND 3),
    CHECK (epoch >= 0)
);

-- The changes of each sale's phase: an audit finds here when a request could be accepted.
CREATE TABLE sale_phases (
    sale_no       INTEGER NOT NULL,
    epoch         BIGINT NOT NULL,
    phase         SMALLINT NOT NULL,
    -- Written in the transaction that changes the sale.
    changed_at_ms BIGINT NOT NULL,
    -- When no bucket was in an earlier phase any more; NULL: not known yet.
    applied_at_ms BIGINT,
    PRIMARY KEY (sale_no, epoch, phase),
    CHECK (phase BETWEEN 0 AND 3)
) WITHOUT ROWID;

-- The SKUs of the sales; `available` is the authoritative count of the units left.
CREATE TABLE skus (
    sku_no           INTEGER PRIMARY KEY AUTOINCREMENT,
    sale_no          INTEGER NOT NULL REFERENCES sales (sale_no),
    sku_id           VARCHAR(64) NOT NULL,
    title            VARCHAR(200) NOT NULL,
    price            BIGINT NOT NULL,
    initial_stock    INTEGER NOT NULL,
    available        INTEGER NOT NULL,
    policy_kind      VARCHAR(16) NOT NULL,
    -- Units per buyer; NULL when the policy counts no units.
    policy_limit     INTEGER,
    max_quantity     INTEGER NOT NULL,
    buckets          SMALLINT NOT NULL,
    payment_window_s INTEGER NOT NULL,
    bar_lapsed       SMALLINT NOT NULL,
    -- The states after which an order stops counting for its buyer's limit, one bit per state; 12:
    -- timed_out and cancelled.
    slot_returns     SMALLINT NOT NULL DEFAULT 12,
    ends_max         SMALLINT NOT NULL DEFAULT 3,
    -- How long a request may stay queued, seconds; 0: without limit.
    queue_timeout_s  INTEGER NOT NULL DEFAULT 0,
    UNIQUE (sale_no, sku_id),
    -- A second guard of NoOversell: the conditional UPDATE never violates it.
    CHECK (available >= 0 AND available <= initial_stock),
    CHECK (bar_lapsed IN (0, 1))
);

-- The terms of a SKU, from this epoch on; no row: they never changed.
CREATE TABLE terms (
    sku_no           INTEGER NOT NULL,
    epoch            BIGINT NOT NULL,
    since_ms         BIGINT NOT NULL,
    price            BIGINT NOT NULL,
    -- Units per buyer; NULL when the policy counts no units.
    policy_limit     INTEGER,
    max_quantity     INTEGER NOT NULL,
    payment_window_s INTEGER NOT NULL,
    PRIMARY KEY (sku_no, epoch)
) WITHOUT ROWID;

-- The changes of the stock. The id that an operator gives makes a change of the SKU repeat-safe.
CREATE TABLE stock_changes (
    sku_no    INTEGER NOT NULL,
    change_id VARCHAR(64) NOT NULL,
    -- Counted by SKU, from 1.
    change_no INTEGER NOT NULL,
    -- Units that an operator asked to add; negative: to take out.
    wanted    INTEGER NOT NULL,
    -- Units that were added; negative: taken out.
    units     INTEGER NOT NULL,
    -- Units of this and all earlier changes: initial_stock without these is the stock at the
    -- creation, for which the buckets are planned.
    total     INTEGER NOT NULL,
    reason    VARCHAR(255),
    at_ms     BIGINT NOT NULL,
    PRIMARY KEY (sku_no, change_id),
    UNIQUE (sku_no, change_no)
) WITHOUT ROWID;

-- Orders. The primary key begins with SKU and buyer: it enforces the limit, and a rebuild reads the
-- rows of one SKU only.
CREATE TABLE orders (
    sku_no           INTEGER NOT NULL,
    buyer_id         BIGINT NOT NULL,
    -- 0 under one_per_buyer, so that the key enforces the limit; the request id otherwise, and
    -- after an end that returned the limit.
    slot             BIGINT NOT NULL,
    request_id       BIGINT NOT NULL,
    epoch            BIGINT NOT NULL,
    quantity         INTEGER NOT NULL,
    amount           BIGINT NOT NULL,
    state            SMALLINT NOT NULL,
    placed_at_ms     BIGINT NOT NULL,
    -- The deadline that the buyer sees; 0: none.
    pay_by_ms        BIGINT NOT NULL,
    trace_id         BLOB NOT NULL,
    -- When the message with the intent was published; NULL without a broker.
    published_at_ms  BIGINT,
    -- When the row was written, by the writer's clock.
    recorded_at_ms   BIGINT NOT NULL,
    -- The number of changes since the placement.
    version          INTEGER NOT NULL DEFAULT 0,
    -- When the order ends unless it is paid; NULL: paid, ended or without a deadline.
    due_ms           BIGINT,
    -- 1: counts for the buyer's limit.
    counts_for_limit SMALLINT NOT NULL DEFAULT 1,
    PRIMARY KEY (sku_no, buyer_id, slot),
    -- No foreign key to skus: it would cost a look-up per order. The UPDATE of the stock, which
    -- finds no row, rejects an order of an unknown SKU.
    CHECK (quantity > 0),
    CHECK (state BETWEEN 0 AND 5)
) WITHOUT ROWID;

-- Omits slot 0. Under one_per_buyer the request id is a function of sale, SKU and buyer, so that
-- the primary key already allows only one order per request, and an index of random numbers would
-- cost every order a second random page.
CREATE UNIQUE INDEX orders_by_request ON orders (request_id) WHERE slot <> 0;

-- Finds what is due. Begins with the state: a search for one state reads no rows of the others,
-- which after a sale are all its unpaid orders.
CREATE INDEX orders_due ON orders (state, due_ms) WHERE due_ms IS NOT NULL;

-- The units of each buyer, for SKUs with a quota.
CREATE TABLE quotas (
    sku_no   INTEGER NOT NULL,
    buyer_id BIGINT NOT NULL,
    owned    INTEGER NOT NULL,
    quota    INTEGER NOT NULL,
    PRIMARY KEY (sku_no, buyer_id),
    -- A second guard of LimitHeld: the conditional UPDATE never violates it.
    CHECK (owned >= 0 AND owned <= quota)
) WITHOUT ROWID;

-- One row per change of an order, written in the transaction of the change. A placement writes one
-- row per transaction, not per order: version 0 of its first order. A failed request has one, too:
-- version 0.
CREATE TABLE order_events (
    request_id  BIGINT NOT NULL,
    -- The order's version after the change: unique, so that a change happens once.
    version     INTEGER NOT NULL,
    sku_no      INTEGER NOT NULL,
    buyer_id    BIGINT NOT NULL,
    -- The order's state after the change.
    kind        SMALLINT NOT NULL,
    at_ms       BIGINT NOT NULL,
    -- The order's deadline after the change.
    due_ms      BIGINT,
    -- buyer, timer, provider or operator:<name>.
    actor       VARCHAR(80) NOT NULL,
    reason      VARCHAR(255),
    payment_id  VARCHAR(255),
    -- 1: the order stopped counting for its buyer's limit.
    limit_back  SMALLINT NOT NULL,
    -- 1, or the number of orders of a placement.
    num_orders  INTEGER NOT NULL,
    -- The orders of a placement, 20 bytes each: SKU, buyer, request. NULL: any other change, and
    -- with version 0 a failed request, whose other columns are in failed_requests.
    placed      BLOB,
    -- Given after the commit; the last number of the orders of a placement. NULL: not given yet.
    feed_no     BIGINT,
    -- 1: the order had ended before, and money of it is to be paid back.
    unfulfilled SMALLINT NOT NULL DEFAULT 0,
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
    -- 6: retaking, late money that buys again.
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

-- Finds the payments in one state in the order of their key.
CREATE INDEX payments_by_state ON payments (state, sku_no, buyer_id, request_id, attempt_no);

-- Finds what is due; see orders_due.
CREATE INDEX payments_refund_due ON payments (state, refund_due_ms)
    WHERE refund_due_ms IS NOT NULL;

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
    -- The attempt that the report names; NULL: none.
    attempt        VARCHAR(96),
    -- When an operator resolved an unmatched report; NULL: it waits.
    resolved_at_ms BIGINT,
    PRIMARY KEY (provider, event_id),
    CHECK (outcome BETWEEN 0 AND 8)
) WITHOUT ROWID;

-- Finds the reports of no known attempt (outcome 8), oldest first.
CREATE INDEX payment_events_unmatched ON payment_events (outcome, at_ms, event_id)
    WHERE outcome = 8;

-- Finds the reports about the payments of an order.
CREATE INDEX payment_events_by_request ON payment_events (request_id)
    WHERE request_id IS NOT NULL;

-- Buyers who may not order in a sale any more: for each of their orders that timed out one row for
-- each SKU of the sale, so that a placement finds them by the key of its order.
CREATE TABLE bars (
    sku_no     INTEGER NOT NULL,
    buyer_id   BIGINT NOT NULL,
    -- The order that timed out.
    request_id BIGINT NOT NULL,
    at_ms      BIGINT NOT NULL,
    -- The purchase with late money of that order: no bar of the buyer applies to it.
    exempt_id  BIGINT,
    PRIMARY KEY (sku_no, buyer_id, request_id)
) WITHOUT ROWID;

-- Each process reads, again and again, the bars that it lacks.
CREATE INDEX bars_by_time ON bars (sku_no, at_ms);

-- How far each reader of the feed of order events has come.
CREATE TABLE cursors (
    name    VARCHAR(64) NOT NULL PRIMARY KEY,
    feed_no BIGINT NOT NULL
) WITHOUT ROWID;

-- The repairs of audits.
CREATE TABLE repairs (
    repair_no  INTEGER PRIMARY KEY AUTOINCREMENT,
    sku_no     INTEGER NOT NULL,
    -- NULL: the repair of a count.
    request_id BIGINT,
    -- 1: leak, 2: over_sell, 3: drift.
    verdict    SMALLINT NOT NULL,
    action     VARCHAR(32) NOT NULL,
    -- 1: compensated, 2: failed_final.
    outcome    SMALLINT NOT NULL,
    detail     VARCHAR(1000) NOT NULL,
    at_ms      BIGINT NOT NULL,
    CHECK (verdict BETWEEN 1 AND 3),
    CHECK (outcome BETWEEN 1 AND 2)
);

-- Finds a failure that is recorded already.
CREATE INDEX repairs_by_sku ON repairs (sku_no, request_id);

-- Accepted requests that did not become an order, with the reason. A recorded request never becomes
-- an order later.
CREATE TABLE failed_requests (
    request_id       BIGINT NOT NULL PRIMARY KEY,
    sku_no           INTEGER NOT NULL,
    buyer_id         BIGINT NOT NULL,
    quantity         INTEGER NOT NULL,
    -- The code of the refusal; the next three columns are its details or NULL.
    reason           VARCHAR(32) NOT NULL,
    first_request_id BIGINT,
    owned            INTEGER,
    quota            INTEGER,
    recorded_at_ms   BIGINT NOT NULL
) WITHOUT ROWID;

-- For rebuilds and audits, which read the failures of one SKU.
CREATE INDEX failed_requests_by_sku ON failed_requests (sku_no);

-- Undeliverable messages, stored with their bytes until an operator decides.
CREATE TABLE dead_letters (
    -- From the token `dead-letter`: a number is never used twice.
    letter_no     BIGINT NOT NULL PRIMARY KEY,
    -- Over the identity of the message and its whole body: equal for the copies of a message.
    digest        BLOB NOT NULL,
    origin        VARCHAR(16) NOT NULL,
    reason        VARCHAR(1000) NOT NULL,
    attempts      INTEGER NOT NULL,
    message_id    VARCHAR(255) NOT NULL,
    headers       TEXT NOT NULL,
    -- Truncated if body_bytes is larger.
    body          BLOB NOT NULL,
    body_bytes    BIGINT NOT NULL,
    dead_at_ms    BIGINT NOT NULL,
    -- Counts every arrival, so that a message that was dead-lettered again during its replay is not
    -- marked as replayed.
    arrivals      INTEGER NOT NULL,
    state         SMALLINT NOT NULL,
    changed_at_ms BIGINT NOT NULL,
    note          VARCHAR(1000),
    CONSTRAINT dead_letters_state_known CHECK (state BETWEEN 0 AND 3)
);

CREATE UNIQUE INDEX dead_letters_by_digest ON dead_letters (digest);

-- For the pages of one state, newest first, and their count.
CREATE INDEX dead_letters_by_state ON dead_letters (state, letter_no);

-- The accepted requests of the dead letters.
CREATE TABLE dead_requests (
    request_id BIGINT NOT NULL,
    letter_no  BIGINT NOT NULL,
    sku_no     INTEGER NOT NULL,
    buyer_id   BIGINT NOT NULL,
    PRIMARY KEY (request_id, letter_no)
) WITHOUT ROWID;

-- For the requests of one dead letter.
CREATE INDEX dead_requests_by_letter ON dead_requests (letter_no, sku_no);

-- The verbs of operators that changed something, each written in the transaction of its change.
CREATE TABLE operator_verbs (
    verb_no  INTEGER PRIMARY KEY AUTOINCREMENT,
    -- What was changed: sale:<sale_id>, payment:<id>, dead_letter:<number>.
    subject  VARCHAR(320) NOT NULL,
    verb     VARCHAR(32) NOT NULL,
    -- The name of the token.
    operator VARCHAR(64) NOT NULL,
    reason   VARCHAR(1000),
    -- Old and new values of `change`, units of `stock`; otherwise NULL.
    detail   VARCHAR(1000),
    at_ms    BIGINT NOT NULL
);

-- For the verbs of one subject, newest first.
CREATE INDEX operator_verbs_by_subject ON operator_verbs (subject, verb_no);

-- The counters of fencing tokens, process numbers and dead letters.
CREATE TABLE tokens (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL
) WITHOUT ROWID;

-- The secrets of the installation.
CREATE TABLE secrets (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

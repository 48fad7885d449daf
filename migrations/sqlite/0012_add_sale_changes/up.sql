-- Adds what a sale needs to change while it runs: the terms of its epochs, and the changes of its
-- stock.

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

-- A row makes its change repeat-safe.
CREATE TABLE stock_changes (
    change_id VARCHAR(64) NOT NULL PRIMARY KEY,
    sku_no    INTEGER NOT NULL,
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
    UNIQUE (sku_no, change_no)
) WITHOUT ROWID;

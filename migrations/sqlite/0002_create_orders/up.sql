-- Creates orders and quotas, keyed by SKU and buyer: the limits are keys, and a rebuild reads one
-- SKU from its first row to its last without touching another.
CREATE TABLE orders (
    sku_no       INTEGER NOT NULL,
    buyer_id     BIGINT NOT NULL,
    -- 0 under one_per_buyer, so that the key itself holds the limit; else the request's number.
    slot         BIGINT NOT NULL,
    request_id   BIGINT NOT NULL,
    epoch        BIGINT NOT NULL,
    quantity     INTEGER NOT NULL,
    amount       BIGINT NOT NULL,
    state        SMALLINT NOT NULL,
    placed_at_ms BIGINT NOT NULL,
    pay_by_ms    BIGINT NOT NULL,
    trace_id     BLOB NOT NULL,
    PRIMARY KEY (sku_no, buyer_id, slot),
    -- No foreign key to skus: an order of an unknown SKU cannot be written anyway, because its stock
    -- UPDATE finds no row, and the key would cost a look-up per order.
    UNIQUE (request_id),
    CHECK (quantity > 0),
    CHECK (state BETWEEN 0 AND 4)
) WITHOUT ROWID;

CREATE TABLE quotas (
    sku_no   INTEGER NOT NULL,
    buyer_id BIGINT NOT NULL,
    owned    INTEGER NOT NULL,
    quota    INTEGER NOT NULL,
    PRIMARY KEY (sku_no, buyer_id),
    -- The belt of LimitHeld: the conditional UPDATE never gets here.
    CHECK (owned >= 0 AND owned <= quota)
) WITHOUT ROWID;

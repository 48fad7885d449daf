-- Creates orders and quotas with primary keys that begin with SKU and buyer: the keys enforce the
-- limits, and a rebuild reads the rows of one SKU only.
CREATE TABLE orders (
    sku_no       INTEGER NOT NULL,
    buyer_id     BIGINT NOT NULL,
    -- 0 under one_per_buyer, so that the key enforces the limit; the request id otherwise.
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
    -- No foreign key to skus: it would cost a look-up per order. The UPDATE of the stock, which
    -- finds no row, rejects an order of an unknown SKU.
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
    -- A second guard of LimitHeld: the conditional UPDATE never violates it.
    CHECK (owned >= 0 AND owned <= quota)
) WITHOUT ROWID;

-- Creates orders and quotas with primary keys that begin with SKU and buyer: the keys enforce the
-- limits, and a rebuild reads the rows of one SKU only.
CREATE TABLE IF NOT EXISTS orders (
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
    trace_id     BINARY(16) NOT NULL,
    PRIMARY KEY (sku_no, buyer_id, slot),
    -- No foreign key to skus: it would cost a look-up per order and a lock on the hot row. The
    -- UPDATE of the stock, which finds no row, rejects an order of an unknown SKU.
    UNIQUE KEY orders_by_request (request_id),
    CONSTRAINT orders_of_units CHECK (quantity > 0),
    CONSTRAINT orders_state_known CHECK (state BETWEEN 0 AND 4)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS quotas (
    sku_no   INTEGER NOT NULL,
    buyer_id BIGINT NOT NULL,
    owned    INTEGER NOT NULL,
    quota    INTEGER NOT NULL,
    PRIMARY KEY (sku_no, buyer_id),
    -- A second guard of LimitHeld: the conditional UPDATE never violates it.
    CONSTRAINT quotas_held CHECK (owned >= 0 AND owned <= quota)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Creates sales and their SKUs; `available` is the authoritative count of the units left.
CREATE TABLE sales (
    sale_no      INTEGER PRIMARY KEY AUTOINCREMENT,
    sale_id      VARCHAR(64) NOT NULL UNIQUE,
    title        VARCHAR(200) NOT NULL,
    starts_at_ms BIGINT NOT NULL,
    ends_at_ms   BIGINT NOT NULL,
    phase        SMALLINT NOT NULL,
    -- The number of the latest opening, from 1; 0: never opened.
    epoch        BIGINT NOT NULL,
    opened_at_ms BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    CHECK (phase BETWEEN 0 AND 3),
    CHECK (epoch >= 0)
);

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
    UNIQUE (sale_no, sku_id),
    -- A second guard of NoOversell: the conditional UPDATE never violates it.
    CHECK (available >= 0 AND available <= initial_stock),
    CHECK (bar_lapsed IN (0, 1))
);

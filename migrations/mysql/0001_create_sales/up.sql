-- Creates sales and their SKUs; `available` is the authoritative count of the units left.
CREATE TABLE IF NOT EXISTS sales (
    sale_no       INTEGER NOT NULL AUTO_INCREMENT PRIMARY KEY,
    sale_id       VARCHAR(64) NOT NULL,
    title         VARCHAR(200) NOT NULL,
    starts_at_ms  BIGINT NOT NULL,
    ends_at_ms    BIGINT NOT NULL,
    phase         SMALLINT NOT NULL,
    -- The number of the latest opening, from 1; 0: never opened.
    epoch         BIGINT NOT NULL,
    opened_at_ms  BIGINT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    UNIQUE KEY sales_by_id (sale_id),
    CONSTRAINT sales_phase_known CHECK (phase BETWEEN 0 AND 3),
    CONSTRAINT sales_epoch_counted CHECK (epoch >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS skus (
    sku_no           INTEGER NOT NULL AUTO_INCREMENT PRIMARY KEY,
    sale_no          INTEGER NOT NULL,
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
    UNIQUE KEY skus_by_sale (sale_no, sku_id),
    CONSTRAINT skus_of_sales FOREIGN KEY (sale_no) REFERENCES sales (sale_no),
    -- A second guard of NoOversell: the conditional UPDATE never violates it.
    CONSTRAINT skus_not_oversold CHECK (available >= 0 AND available <= initial_stock),
    CONSTRAINT skus_bar_known CHECK (bar_lapsed IN (0, 1))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Creates the record of accepted requests that did not become an order, with the reason. A recorded
-- request never becomes an order later.
CREATE TABLE IF NOT EXISTS failed_requests (
    request_id       BIGINT NOT NULL PRIMARY KEY,
    sku_no           INTEGER NOT NULL,
    buyer_id         BIGINT NOT NULL,
    quantity         INTEGER NOT NULL,
    -- The code of the refusal; the next three columns are its details or NULL.
    reason           VARCHAR(32) NOT NULL,
    first_request_id BIGINT,
    owned            INTEGER,
    quota            INTEGER,
    recorded_at_ms   BIGINT NOT NULL,
    -- For rebuilds and audits, which read the failures of one SKU.
    KEY failed_requests_by_sku (sku_no)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

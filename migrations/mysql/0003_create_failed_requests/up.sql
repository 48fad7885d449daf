-- Creates the record of accepted requests that became no order, so that none is lost without a
-- reason and none becomes an order later.
CREATE TABLE IF NOT EXISTS failed_requests (
    request_id       BIGINT NOT NULL PRIMARY KEY,
    sku_no           INTEGER NOT NULL,
    buyer_id         BIGINT NOT NULL,
    quantity         INTEGER NOT NULL,
    -- The code of the refusal; the next three are its details, where it has any.
    reason           VARCHAR(32) NOT NULL,
    first_request_id BIGINT,
    owned            INTEGER,
    quota            INTEGER,
    recorded_at_ms   BIGINT NOT NULL,
    -- A rebuild and an audit read the failures of one SKU.
    KEY failed_requests_by_sku (sku_no)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Creates the record of accepted requests that did not become an order, with the reason. A recorded
-- request never becomes an order later.
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

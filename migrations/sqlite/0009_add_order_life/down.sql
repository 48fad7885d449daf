-- Removes the life of orders, for tests of the migrations only; paying orders become unpaid ones.
DROP TABLE cursors;
DROP TABLE bars;
DROP TABLE payment_events;
DROP TABLE payments;
DROP TABLE order_events;
UPDATE orders SET state = 0 WHERE state = 5;
ALTER TABLE sales DROP COLUMN currency;
ALTER TABLE skus DROP COLUMN ends_max;
ALTER TABLE skus DROP COLUMN slot_returns;

CREATE TABLE orders_copy (
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
    -- When the message with the intent was published; NULL without a broker.
    published_at_ms BIGINT,
    -- When the row was written, by the writer's clock; NULL in rows of versions before 0006.
    recorded_at_ms BIGINT,
    PRIMARY KEY (sku_no, buyer_id, slot),
    -- No foreign key to skus: it would cost a look-up per order. The UPDATE of the stock, which
    -- finds no row, rejects an order of an unknown SKU.
    CHECK (quantity > 0),
    CHECK (state BETWEEN 0 AND 4)
) WITHOUT ROWID;

INSERT INTO orders_copy
    (sku_no, buyer_id, slot, request_id, epoch, quantity, amount, state, placed_at_ms, pay_by_ms,
     trace_id, published_at_ms, recorded_at_ms)
SELECT sku_no, buyer_id, slot, request_id, epoch, quantity, amount, state, placed_at_ms, pay_by_ms,
     trace_id, published_at_ms, recorded_at_ms
FROM orders ORDER BY sku_no, buyer_id, slot;

DROP TABLE orders;
ALTER TABLE orders_copy RENAME TO orders;

CREATE UNIQUE INDEX orders_by_request ON orders (request_id) WHERE slot <> 0;

-- Adds the state to the indexes of what is due: a search for one state reads no rows of the others,
-- which after a sale are all its unpaid orders. The number of indexes stays the same.
DROP INDEX orders_due;
CREATE INDEX orders_due ON orders (state, due_ms) WHERE due_ms IS NOT NULL;

DROP INDEX payments_refund_due;
CREATE INDEX payments_refund_due ON payments (state, refund_due_ms)
    WHERE refund_due_ms IS NOT NULL;

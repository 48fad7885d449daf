-- Restores the indexes without the state, for tests of the migrations only.
DROP INDEX payments_refund_due;
CREATE INDEX payments_refund_due ON payments (refund_due_ms) WHERE refund_due_ms IS NOT NULL;

DROP INDEX orders_due;
CREATE INDEX orders_due ON orders (due_ms) WHERE due_ms IS NOT NULL;

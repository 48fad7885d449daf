-- Restores the indexes without the state, for tests of the migrations only.
ALTER TABLE payments
    DROP KEY payments_refund_due,
    ADD KEY payments_refund_due (refund_due_ms);
ALTER TABLE orders DROP KEY orders_due, ADD KEY orders_due (due_ms);

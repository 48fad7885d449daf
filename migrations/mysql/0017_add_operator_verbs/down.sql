-- Removes the verbs of operators, for tests of the migrations only.
ALTER TABLE dead_requests DROP COLUMN buyer_id, DROP COLUMN sku_no;
ALTER TABLE payment_events DROP COLUMN resolved_at_ms;
DROP TABLE operator_verbs;

-- Drops the column of sales that require tickets, for tests of the migrations only.
ALTER TABLE sales DROP COLUMN ticket_required;

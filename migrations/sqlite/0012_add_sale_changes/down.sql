-- Removes the changes of sales, for tests of the migrations only.
DROP TABLE stock_changes;
DROP TABLE terms;

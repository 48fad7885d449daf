-- Adds an index of the bars by time: each process reads, again and again, those that it lacks.
CREATE INDEX bars_by_time ON bars (sku_no, at_ms);

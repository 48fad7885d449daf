-- Adds an index of the bars by time: each process reads, again and again, those that it lacks.
--
-- Conditional, so that it can be repeated; see 0006.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'bars'
     AND index_name = 'bars_by_time') = 0,
    'ALTER TABLE bars ADD KEY bars_by_time (sku_no, at_ms)',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

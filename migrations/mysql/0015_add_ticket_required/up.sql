-- Adds whether a purchase of a sale requires a ticket: 1, or 0 as in sales before this migration.
-- Conditional, so that it can be repeated.
SET @floodgate_change = IF(
    (SELECT COUNT(*) FROM information_schema.columns
     WHERE table_schema = DATABASE() AND table_name = 'sales'
     AND column_name = 'ticket_required') = 0,
    'ALTER TABLE sales ADD COLUMN ticket_required SMALLINT NOT NULL DEFAULT 0',
    'DO 0'
);
PREPARE floodgate_change FROM @floodgate_change;
EXECUTE floodgate_change;
DEALLOCATE PREPARE floodgate_change;

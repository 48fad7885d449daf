-- Adds whether a purchase of a sale requires a ticket: 1, or 0 as in sales before this migration.
ALTER TABLE sales ADD COLUMN ticket_required SMALLINT NOT NULL DEFAULT 0;

-- Adds nothing here: SQLite leaves slot 0 out of its index of request ids, and neither MySQL nor
-- MariaDB has such an index. A generated column that is NULL in slot 0 is no substitute: InnoDB
-- keeps NULL keys in the index too, and they cost an order as much as its request id.
DO 0;

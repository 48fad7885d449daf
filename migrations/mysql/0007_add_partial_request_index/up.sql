-- Adds nothing: in SQLite the index of request ids omits slot 0, but MySQL and MariaDB have no
-- partial indexes. A generated column that is NULL in slot 0 is no substitute: InnoDB indexes NULL
-- keys too, and they cost an order as much as its request id.
DO 0;

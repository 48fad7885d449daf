-- Creates counters that fence a process which was replaced, and the secrets of this installation.
CREATE TABLE tokens (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL
) WITHOUT ROWID;

CREATE TABLE secrets (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

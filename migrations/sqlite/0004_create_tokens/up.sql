-- Creates the counters of fencing tokens and process numbers, and the secrets of the installation.
CREATE TABLE tokens (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL
) WITHOUT ROWID;

CREATE TABLE secrets (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;

-- Creates the counters of fencing tokens and process numbers, and the secrets of the installation.
CREATE TABLE IF NOT EXISTS tokens (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS secrets (
    name  VARCHAR(64) NOT NULL PRIMARY KEY,
    value VARBINARY(255) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Creates the dead letters: undeliverable messages, stored with their bytes until an operator
-- decides, and indexed by the accepted requests that they contain.
CREATE TABLE IF NOT EXISTS dead_letters (
    -- From the token `dead-letter`: a number is never used twice.
    letter_no     BIGINT NOT NULL PRIMARY KEY,
    -- Over the identity of the message and its whole body: equal for the copies of a message.
    digest        BINARY(32) NOT NULL,
    origin        VARCHAR(16) NOT NULL,
    reason        VARCHAR(1000) NOT NULL,
    attempts      INTEGER NOT NULL,
    message_id    VARCHAR(255) NOT NULL,
    headers       TEXT NOT NULL,
    -- Truncated if body_bytes is larger.
    body          MEDIUMBLOB NOT NULL,
    body_bytes    BIGINT NOT NULL,
    dead_at_ms    BIGINT NOT NULL,
    -- Counts every arrival, so that a message that was dead-lettered again during its replay is not
    -- marked as replayed.
    arrivals      INTEGER NOT NULL,
    state         SMALLINT NOT NULL,
    changed_at_ms BIGINT NOT NULL,
    note          VARCHAR(1000),
    UNIQUE KEY dead_letters_by_digest (digest),
    -- For the pages of one state, newest first, and their count.
    KEY dead_letters_by_state (state, letter_no),
    CONSTRAINT dead_letters_state_known CHECK (state BETWEEN 0 AND 2)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS dead_requests (
    request_id BIGINT NOT NULL,
    letter_no  BIGINT NOT NULL,
    PRIMARY KEY (request_id, letter_no),
    -- For the requests of one dead letter.
    KEY dead_requests_by_letter (letter_no)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Removes the state discarded, for tests of the migrations only; discarded dead letters become
-- parked.
UPDATE dead_letters SET state = 2 WHERE state = 3;

CREATE TABLE dead_letters_of_any_state (
    -- From the token `dead-letter`: a number is never used twice.
    letter_no     BIGINT NOT NULL PRIMARY KEY,
    -- Over the identity of the message and its whole body: equal for the copies of a message.
    digest        BLOB NOT NULL,
    origin        VARCHAR(16) NOT NULL,
    reason        VARCHAR(1000) NOT NULL,
    attempts      INTEGER NOT NULL,
    message_id    VARCHAR(255) NOT NULL,
    headers       TEXT NOT NULL,
    -- Truncated if body_bytes is larger.
    body          BLOB NOT NULL,
    body_bytes    BIGINT NOT NULL,
    dead_at_ms    BIGINT NOT NULL,
    -- Counts every arrival, so that a message that was dead-lettered again during its replay is not
    -- marked as replayed.
    arrivals      INTEGER NOT NULL,
    state         SMALLINT NOT NULL,
    changed_at_ms BIGINT NOT NULL,
    note          VARCHAR(1000),
    CONSTRAINT dead_letters_state_known CHECK (state BETWEEN 0 AND 2)
);

INSERT INTO dead_letters_of_any_state SELECT * FROM dead_letters;

DROP TABLE dead_letters;

ALTER TABLE dead_letters_of_any_state RENAME TO dead_letters;

CREATE UNIQUE INDEX dead_letters_by_digest ON dead_letters (digest);

-- For the pages of one state, newest first, and their count.
CREATE INDEX dead_letters_by_state ON dead_letters (state, letter_no);

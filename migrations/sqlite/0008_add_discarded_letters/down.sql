-- Takes the state discarded away, for tests of the migrations; such letters become parked.
UPDATE dead_letters SET state = 2 WHERE state = 3;

CREATE TABLE dead_letters_of_any_state (
    -- Counted by the token `dead-letter`: a number is never given twice.
    letter_no     BIGINT NOT NULL PRIMARY KEY,
    -- Over what the message says it is and its whole body: copies of a message are one letter.
    digest        BLOB NOT NULL,
    origin        VARCHAR(16) NOT NULL,
    reason        VARCHAR(1000) NOT NULL,
    attempts      INTEGER NOT NULL,
    message_id    VARCHAR(255) NOT NULL,
    headers       TEXT NOT NULL,
    -- The beginning, where body_bytes says more.
    body          BLOB NOT NULL,
    body_bytes    BIGINT NOT NULL,
    dead_at_ms    BIGINT NOT NULL,
    -- Counts every copy that came, so that a letter which died again while it was being replayed
    -- is not taken for replayed.
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

-- Pages of one state, newest first; and how many there are.
CREATE INDEX dead_letters_by_state ON dead_letters (state, letter_no);

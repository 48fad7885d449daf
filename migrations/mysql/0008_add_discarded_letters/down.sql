-- Takes the state discarded away, for tests of the migrations; such letters become parked.
UPDATE dead_letters SET state = 2 WHERE state = 3;
ALTER TABLE dead_letters
    DROP CONSTRAINT dead_letters_state_known,
    ADD CONSTRAINT dead_letters_state_known CHECK (state BETWEEN 0 AND 2);

-- Removes the state discarded, for tests of the migrations only; discarded dead letters become
-- parked.
UPDATE dead_letters SET state = 2 WHERE state = 3;
ALTER TABLE dead_letters
    DROP CONSTRAINT dead_letters_state_known,
    ADD CONSTRAINT dead_letters_state_known CHECK (state BETWEEN 0 AND 2);

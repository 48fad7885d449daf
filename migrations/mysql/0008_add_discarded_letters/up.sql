-- Adds a fourth state of dead letters, discarded (3): an operator discarded the message, and its
-- requests are recorded failures. One statement that can be repeated.
ALTER TABLE dead_letters
    DROP CONSTRAINT dead_letters_state_known,
    ADD CONSTRAINT dead_letters_state_known CHECK (state BETWEEN 0 AND 3);

-- Reverts nothing: the migration adds nothing.
DO 0;

-- Removes the changes of phases and the repairs, for tests of the migrations only.
DROP TABLE repairs;
DROP TABLE sale_phases;

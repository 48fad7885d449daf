-- Takes back nothing, as nothing was added.
DO 0;

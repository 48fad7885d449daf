#!lua flags=allow-oom
-- Returns the entries of expired workers, where the next claims take them first.
--
-- KEYS: bucket, outbox
-- ARGV: server, installation, workers..
-- Answer: OK, number of returned entries.
local outbox, installation, moved = KEYS[2], ARGV[2], 0
local bad = check_installation(installation)
if bad then return bad end
if not last_delivered(outbox) then return {OK, 0} end
for i = 3, #ARGV do moved = moved + move_all(outbox, ARGV[i], ORPHANS) end
return {OK, moved}

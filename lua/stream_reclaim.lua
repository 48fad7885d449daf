#!lua flags=allow-oom
-- Takes entries from workers that are gone; whoever claims next gets these first.
--
-- KEYS: bucket, outbox
-- ARGV: installation, workers..
-- Answer: OK, how many entries were taken.
local outbox, installation, moved = KEYS[2], ARGV[1], 0
local bad = foreign(installation)
if bad then return bad end
if not has_group(outbox) then return {OK, 0} end
for i = 2, #ARGV do moved = moved + move_all(outbox, ARGV[i], ORPHANS) end
return {OK, moved}

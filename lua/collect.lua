#!lua flags=allow-oom
-- Removes dead letters, wherever in the line they stand: one that cannot be written down elsewhere
-- keeps no other one here.
--
-- KEYS: bucket, dead
-- ARGV: installation, letters
-- Answer: OK, how many of them were there.
local bad = foreign(ARGV[1])
if bad then return bad end
local removed = 0
for n = 2, #ARGV do
  removed = removed + call('LREM', KEYS[2], 1, ARGV[n])
end
return {OK, removed}

#!lua flags=allow-oom
-- Removes dead letters at any position of the list: one that cannot be stored elsewhere does not
-- block the others.
--
-- KEYS: bucket, dead
-- ARGV: server, installation, dead letters..
-- Answer: OK, number of removed dead letters.
local dead, installation = KEYS[2], ARGV[2]
local bad = check_installation(installation)
if bad then return bad end
local removed = 0
for n = 3, #ARGV do
  removed = removed + call('LREM', dead, 1, ARGV[n])
end
return {OK, removed}

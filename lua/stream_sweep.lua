#!lua flags=allow-oom
-- Gives to nobody what somebody has held for too long, a part of the group at a time: the net for
-- consumers that no worker answers for.
--
-- KEYS: bucket, line
-- ARGV: installation, longest time in hand in milliseconds, where to go on
-- Answer: OK, ids of entries that somebody else had deleted, how many entries went back, where to
--         go on the next time.
local bad = foreign(ARGV[1])
if bad then return bad end
local line = KEYS[2]
if not has_group(line) then return {OK, {}, 0, '0-0'} end
local swept = call('XAUTOCLAIM', line, GROUP, ORPHANS, ARGV[2], ARGV[3], 'COUNT', 100, 'JUSTID')
return {OK, swept[3], #swept[2], swept[1]}

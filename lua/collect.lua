#!lua flags=allow-oom
-- Removes dead letters from the front, if they are the ones that the asker has read.
--
-- KEYS: bucket, dead
-- ARGV: installation, how many, first, last
-- Answer: OK, 1 when they were removed, 0 when others are there.
local bad = foreign(ARGV[1])
if bad then return bad end
local size = tonumber(ARGV[2])
local first, last = call('LINDEX', KEYS[2], 0), call('LINDEX', KEYS[2], size - 1)
if size < 1 or first ~= ARGV[3] or last ~= ARGV[4] then return {OK, 0} end
call('LTRIM', KEYS[2], size, -1)
return {OK, 1}

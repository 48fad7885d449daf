#!lua flags=allow-oom
-- Moves the bucket to a phase of an opening: opens, pauses or closes it. An older opening than the
-- bucket's changes nothing.
--
-- KEYS: bucket
-- ARGV: server, installation, epoch, phase
-- Answer: OK, 1 when the bucket is in that phase of that opening now.
local bad, opened = bucket(ARGV[1], ARGV[2])
if bad then return bad end
if tonumber(ARGV[3]) < opened then return {OK, 0} end
call('HSET', KEYS[1], 'epoch', ARGV[2] .. '.' .. ARGV[3], 'phase', ARGV[4])
return {OK, 1}

#!lua flags=allow-oom
-- Moves the bucket on to a phase of an opening: opens, pauses or closes it. A pair that comes
-- before the bucket's own changes nothing. Where a loader holds the bucket, or it was opened on
-- another server, the pair is kept for the opening.
--
-- KEYS: bucket
-- ARGV: server, installation, epoch, phase
-- Answer: OK, 1 when the bucket is in that phase of that opening now, 0 when it is further on.
local installation, epoch, phase = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local found = call('HMGET', KEYS[1], 'epoch', 'phase', 'loading')
local holder = found[3]
local owner = holder or found[1]
if not owner then return {NOT_READY} end
if sub(owner, 1, 8) ~= installation then return {FOREIGN} end
local opened, stage = pair(found[1], found[2])
if not holder and not opened then return {CORRUPT, 'epoch'} end
if not holder and not stage then return {CORRUPT, 'phase'} end
if comes_before(epoch, phase, opened, stage) then return {OK, 0} end
call('HSET', KEYS[1], 'epoch', installation .. '.' .. ARGV[3], 'phase', ARGV[4])
return {OK, 1}

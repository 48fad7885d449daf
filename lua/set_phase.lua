#!lua flags=allow-oom
-- Advances the bucket to a phase of an opening: opens, pauses or closes it. A pair of epoch and
-- phase before the bucket's own changes nothing. If a loader holds the bucket, or the bucket was
-- opened on another server, the pair is stored for the next opening.
--
-- KEYS: bucket
-- ARGV: server, installation, epoch, phase
-- Answer: OK, 1 if the bucket is in that phase of that epoch now, 0 if it is in a later one.
local bucket, installation = KEYS[1], ARGV[2]
local epoch, phase = tonumber(ARGV[3]), tonumber(ARGV[4])
local found = call('HMGET', bucket, 'epoch', 'phase', 'loading')
local holder = found[3]
local owner = holder or found[1]
if not owner then return {NOT_READY} end
if sub(owner, 1, 8) ~= installation then return {FOREIGN} end
local stored_epoch, stored_phase = epoch_and_phase(found[1], found[2])
if not holder and not stored_epoch then return {CORRUPT, 'epoch'} end
if not holder and not stored_phase then return {CORRUPT, 'phase'} end
if comes_before(epoch, phase, stored_epoch, stored_phase) then return {OK, 0} end
call('HSET', bucket, 'epoch', installation .. '.' .. ARGV[3], 'phase', ARGV[4])
return {OK, 1}

#!lua flags=allow-oom
-- Moves the oldest entries of the outbox to the end of a worker's private list.
--
-- KEYS: bucket, outbox, claimants, claimed
-- ARGV: server, installation, worker, most entries to move
-- Answer: OK, the moved entries.
local outbox, claimants, claimed = KEYS[2], KEYS[3], KEYS[4]
local installation, worker, max = ARGV[2], ARGV[3], math.min(tonumber(ARGV[4]), CLAIM_MAX)
local bad = check_installation(installation)
if bad then return bad end
local moved = call('LRANGE', outbox, 0, max - 1)
if #moved > 0 then
  -- Raises an error before the first write if the key has another type.
  call('LLEN', claimed)
  call('SADD', claimants, worker)
  call('RPUSH', claimed, unpack(moved))
  call('LTRIM', outbox, #moved, -1)
end
return {OK, moved}

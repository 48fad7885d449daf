#!lua flags=allow-oom
-- Moves private lists of expired workers to the front of the outbox, each in its order.
--
-- KEYS: bucket, outbox, claimants, claimed..
-- ARGV: server, installation, workers..
-- Answer: OK, number of moved entries.
local outbox, claimants, installation, moved = KEYS[2], KEYS[3], ARGV[2], 0
local bad = check_installation(installation)
if bad then return bad end
-- Raise an error before the first write if a key has another type.
call('SCARD', claimants)
for i = 4, #KEYS do call('LLEN', KEYS[i]) end
call('LLEN', outbox)
for i = #KEYS, 4, -1 do
  while call('LMOVE', KEYS[i], outbox, 'RIGHT', 'LEFT') do moved = moved + 1 end
  call('SREM', claimants, ARGV[i - 1])
end
return {OK, moved}

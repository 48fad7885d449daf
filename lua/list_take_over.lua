#!lua flags=allow-oom
-- Moves the private lists of a worker's predecessors to the worker's own list.
--
-- KEYS: bucket, claimants, claimed, lists of predecessors..
-- ARGV: server, installation, worker, predecessors..
-- Answer: OK, all entries of the worker's list, also those from before.
local claimants, claimed, installation, worker = KEYS[2], KEYS[3], ARGV[2], ARGV[3]
local bad = check_installation(installation)
if bad then return bad end
-- Raise an error before the first write if a key has another type.
call('SCARD', claimants)
for i = 3, #KEYS do call('LLEN', KEYS[i]) end
for i = 4, #KEYS do
  while call('LMOVE', KEYS[i], claimed, 'LEFT', 'RIGHT') do end
  call('SREM', claimants, ARGV[i])
end
local held = call('LRANGE', claimed, 0, -1)
if #held > 0 then call('SADD', claimants, worker) end
return {OK, held}

#!lua flags=allow-oom
-- Moves the private lists of a worker's predecessors to its own.
--
-- KEYS: bucket, claimants, claimed, lists of predecessors..
-- ARGV: installation, worker, predecessors..
-- Answer: OK, every entry of the worker's own list, also what it had before.
local claimants, claimed, installation, worker = KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local bad = foreign(installation)
if bad then return bad end
call('SCARD', claimants)
for i = 3, #KEYS do call('LLEN', KEYS[i]) end
for i = 4, #KEYS do
  while call('LMOVE', KEYS[i], claimed, 'LEFT', 'RIGHT') do end
  call('SREM', claimants, ARGV[i - 1])
end
local held = call('LRANGE', claimed, 0, -1)
if #held > 0 then call('SADD', claimants, worker) end
return {OK, held}

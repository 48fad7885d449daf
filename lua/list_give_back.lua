#!lua flags=allow-oom
-- Puts a worker's whole hand back in front of the line, in its order, and forgets the worker.
--
-- KEYS: bucket, claims, hand, line
-- ARGV: installation, worker
-- Answer: OK, how many entries went back.
local bad = foreign(ARGV[1])
if bad then return bad end
call('HLEN', KEYS[2])
call('LLEN', KEYS[4])
local held = call('LLEN', KEYS[3])
for _ = 1, held do call('LMOVE', KEYS[3], KEYS[4], 'RIGHT', 'LEFT') end
call('HDEL', KEYS[2], ARGV[2])
return {OK, held}

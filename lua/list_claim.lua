#!lua flags=allow-oom
-- Moves entries from the front of the line to the end of a worker's hand.
--
-- KEYS: bucket, claims, hand, line
-- ARGV: installation, worker, life, step, entries in hand, most entries to move
-- With the steps `begin` and `look`, the life is on record from now on, and the answer is the whole
-- hand; with `go on` it is what was moved.
-- Answer: OK, one element for each entry.
local is_new = ARGV[4] ~= 'go on'
local bad = foreign(ARGV[1]) or replaced(ARGV[2], ARGV[3], ARGV[4])
if bad then return bad end
local held, waiting = call('LLEN', KEYS[3]), call('LLEN', KEYS[4])
if not is_new and held ~= whole(ARGV[5]) then return {CHANGED} end

local answer, moved = {OK}, {}
if is_new then
  local hand = call('LRANGE', KEYS[3], 0, -1)
  for i = 1, held do answer[1 + i] = hand[i] end
end
local room = math.min(tonumber(ARGV[6]), HAND_MAX - held, waiting)
if room > 0 then moved = call('LRANGE', KEYS[4], 0, room - 1) end
for i = 1, #moved do answer[#answer + 1] = moved[i] end

if is_new then call('HSET', KEYS[2], ARGV[2], ARGV[3]) end
if #moved > 0 then
  call('RPUSH', KEYS[3], unpack(moved))
  call('LTRIM', KEYS[4], #moved, -1)
end
return answer

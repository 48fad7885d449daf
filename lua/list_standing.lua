#!lua flags=no-writes
-- What waits and what is in hands, at one instant. The asker names the workers; if there are others
-- by now, the answer would not be whole.
--
-- KEYS: bucket, claims, line, dead, hands..
-- ARGV: installation, workers..
-- Answer: OK, entries in the line, oldest, dead letters, then for each worker: name, entries,
--         oldest. An oldest entry is shown by the record of its first intent.
local bad = foreign(ARGV[1])
if bad then return bad end
if call('HLEN', KEYS[2]) ~= #ARGV - 1 then return {CHANGED} end
for i = 2, #ARGV do
  if call('HEXISTS', KEYS[2], ARGV[i]) == 0 then return {CHANGED} end
end
local function oldest(list)
  return sub(call('LINDEX', list, 0) or '', 2, 1 + RECORD_BYTES)
end
local answer = {OK, call('LLEN', KEYS[3]), oldest(KEYS[3]), call('LLEN', KEYS[4])}
for i = 2, #ARGV do
  local hand = KEYS[3 + i]
  answer[#answer + 1] = ARGV[i]
  answer[#answer + 1] = call('LLEN', hand)
  answer[#answer + 1] = oldest(hand)
end
return answer

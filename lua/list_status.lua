#!lua flags=no-writes
-- Counts waiting and claimed entries at one instant.
--
-- KEYS: bucket, outbox, claimed..
-- ARGV: server, installation
-- Answer: OK, entries in the outbox, oldest, then for each private list: entries, oldest. The
--         oldest entry is given as the record of its first intent.
local outbox, installation = KEYS[2], ARGV[2]
local bad = check_installation(installation)
if bad then return bad end
local function oldest(list)
  return sub(call('LINDEX', list, 0) or '', 1, QUEUED_BYTES)
end
local answer = {OK, call('LLEN', outbox), oldest(outbox)}
for i = 3, #KEYS do
  local at = #answer
  answer[at + 1], answer[at + 2] = call('LLEN', KEYS[i]), oldest(KEYS[i])
end
return answer

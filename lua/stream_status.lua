#!lua flags=no-writes
-- Counts waiting and claimed entries at one instant.
--
-- KEYS: bucket, outbox
-- ARGV: server, installation
-- Answer: OK, unclaimed entries, oldest, then for each worker: name, entries, oldest. The oldest
--         entry is given as the record of its first intent.
local outbox, installation = KEYS[2], ARGV[2]
local bad = check_installation(installation)
if bad then return bad end
local function record(entry)
  return entry and sub(message_of(entry[2]), 1, QUEUED_BYTES) or ''
end
local answer, last = {OK, 0, ''}, last_delivered(outbox)
local held, oldest, num_held, num_orphans = {}, {}, 0, 0
if last then
  for _, consumer in ipairs(call('XINFO', 'CONSUMERS', outbox, GROUP)) do
    local name, count = consumer[2], consumer[4]
    num_held = num_held + count
    if count > 0 then
      local id = pending(outbox, name, 1)[1][1]
      oldest[name] = record(call('XRANGE', outbox, id, id)[1])
    end
    if name == ORPHANS then num_orphans = count else held[name] = count end
  end
end
answer[2] = math.max(call('XLEN', outbox) - num_held, 0) + num_orphans
local next_entries = call('XRANGE', outbox, '(' .. (last or '0-0'), '+', 'COUNT', 1)
answer[3] = oldest[ORPHANS] or record(next_entries[1])
for name, count in pairs(held) do
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = name, count, oldest[name] or ''
end
return answer

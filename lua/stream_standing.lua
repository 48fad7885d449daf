#!lua flags=no-writes
-- What waits and what is in hands, at one instant.
--
-- KEYS: bucket, claims, line, dead
-- ARGV: installation
-- Answer: OK, entries in the line, oldest, dead letters, then for each worker: name, entries,
--         oldest. An oldest entry is shown by the record of its first intent.
local bad = foreign(ARGV[1])
if bad then return bad end
local line = KEYS[3]
local function record(entry)
  return entry and sub(body(entry[2]), 1, RECORD_BYTES) or ''
end
local answer, last = {OK, 0, '', call('LLEN', KEYS[4])}, '0-0'
local held, oldest, num_held, num_orphans = {}, {}, 0, 0
for _, worker in ipairs(call('HKEYS', KEYS[2])) do held[worker] = 0 end
if has_group(line) then
  for _, group in ipairs(call('XINFO', 'GROUPS', line)) do
    if group[2] == GROUP then last = group[8] end
  end
  for _, consumer in ipairs(call('XINFO', 'CONSUMERS', line, GROUP)) do
    local name, count = consumer[2], consumer[4]
    num_held = num_held + count
    if count > 0 then
      local id = pending(line, name, 1)[1][1]
      oldest[name] = record(call('XRANGE', line, id, id)[1])
    end
    if name == ORPHANS then num_orphans = count else held[name] = count end
  end
end
answer[2] = math.max(call('XLEN', line) - num_held, 0) + num_orphans
answer[3] = oldest[ORPHANS] or record(call('XRANGE', line, '(' .. last, '+', 'COUNT', 1)[1])
for name, count in pairs(held) do
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = name, count, oldest[name] or ''
end
return answer

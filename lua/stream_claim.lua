#!lua flags=allow-oom
-- Moves entries into a worker's hand: first what was given back, then the oldest of the stream.
--
-- KEYS: bucket, claims, line
-- ARGV: installation, worker, life, step, entries in hand, most entries to move
-- With the steps `begin` and `look`, the life is on record from now on, and the answer is the whole
-- hand; with `go on` it is what was moved. Entries that somebody else deleted from the stream leave
-- the hand, and are named.
-- Answer: OK, ids of deleted entries, then for each entry: id, deliveries, message.
local is_new = ARGV[4] ~= 'go on'
local bad = foreign(ARGV[1]) or replaced(ARGV[2], ARGV[3], ARGV[4])
if bad then return bad end
local worker, line = ARGV[2], KEYS[3]
local is_grouped = has_group(line)
local hand = is_grouped and pending(line, worker, HAND_MAX) or {}
if not is_new and #hand ~= whole(ARGV[5]) then return {CHANGED} end

local vanished, answer = {}, {OK}
local function tell(id, deliveries, fields)
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = id, deliveries, body(fields)
end
-- What this consumer holds already.
local function tell_all(entries)
  for _, entry in ipairs(entries) do
    local id = entry[1]
    local found = call('XRANGE', line, id, id)[1]
    if found then
      tell(id, entry[4], found[2])
    else
      call('XACK', line, GROUP, id)
      vanished[#vanished + 1] = id
    end
  end
end

answer[2] = vanished
if not is_grouped then call('XGROUP', 'CREATE', line, GROUP, '0', 'MKSTREAM') end
if is_new then
  call('HSET', KEYS[2], worker, ARGV[3])
  tell_all(hand)
end
local room = math.min(tonumber(ARGV[6]), HAND_MAX - #hand)
if room > 0 then
  local orphans = pending(line, ORPHANS, room)
  hand_over(line, worker, orphans)
  tell_all(orphans)
  room = room - #orphans
end
if room > 0 then
  local read = call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', room, 'STREAMS', line, '>')
  for _, entry in ipairs(read and read[1][2] or {}) do tell(entry[1], 1, entry[2]) end
end
return answer

-- What every script begins with. The codes and limits above this line are written by
-- src/redis/scripts/codes.rs when the script is loaded; they exist nowhere else.
--
-- Redis keeps what a failing script wrote before it failed. So every script reads and checks all
-- that it needs first, and writes last: a wrong type, a wrong number or a missing key ends it
-- before its first write. Ids stay strings: a Lua number loses digits after 2^53.

local call, sub, find = redis.call, string.sub, string.find
local byte, unpack, unpack_bytes = string.byte, unpack, struct.unpack

-- The number that a script wrote as digits; nil for anything else. 15 digits are exact in a double.
local function whole(text)
  if text and #text > 0 and #text < 16 and not find(text, '%D') then return tonumber(text) end
end

-- The number in `<installation>.<number>`; nil when it is not written so.
local function tagged(text)
  if sub(text, 9, 9) == '.' then return whole(sub(text, 10)) end
end

-- The pair of an opening and a phase, out of their fields; nil for what no script wrote.
local function pair(epoch, phase)
  local opened, stage = epoch and tagged(epoch), whole(phase)
  return opened, stage and stage <= PHASE_MAX and stage
end

-- Whether a pair comes before the one that the bucket has: an opening raises the epoch, and within
-- one the phases only go on. What cannot be read has nothing before it.
local function comes_before(epoch, phase, opened, stage)
  if not opened or not stage then return false end
  return epoch < opened or epoch == opened and phase < stage
end

-- Reads the bucket (KEYS[1]). First comes the answer that ends the script when the bucket must not
-- be touched: nothing published, another installation's, opened on another server, or damaged;
-- then the tags of its opening and its load, and the numbers of the fields that are asked for. A
-- bucket that a loader holds has its records until they are cleared, for whoever says `reads`.
local function bucket(reads, server, installation, ...)
  local found, fields = call('HMGET', KEYS[1], 'server', 'epoch', 'loaded', 'loading', ...), {...}
  local epoch, loaded = found[2], found[3]
  if not epoch or not loaded or found[4] and not reads then return {NOT_READY} end
  if sub(epoch, 1, 8) ~= installation then return {FOREIGN} end
  if found[1] ~= server then return {FENCED} end
  local numbers = {}
  for i = 1, #fields do
    local field, number = fields[i], whole(found[4 + i])
    local most = field == 'phase' and PHASE_MAX or number
    if field == 'stock' or field == 'lent' then most = UNITS_MAX end
    if not number or number > most then return {CORRUPT, field} end
    numbers[i] = number
  end
  return nil, epoch, loaded, unpack(numbers)
end

-- The number that loans and changes of the load with this tag begin after.
local function floor_of(loaded, installation)
  local load = sub(loaded, 1, 8) == installation and tagged(loaded)
  return load and load * NUMBERS_PER_LOAD
end

-- Reads the bucket while it is being loaded. First comes the answer that ends the script when this
-- loader may not write; second, whether it has published the bucket before.
local function loading(server, installation, loader)
  local found = call('HMGET', KEYS[1], 'loading', 'loaded', 'server')
  local holder, tag = found[1] or found[2], installation .. '.' .. loader
  if not holder then return {NOT_READY} end
  if sub(holder, 1, 8) ~= installation then return {FOREIGN} end
  if holder ~= tag then return {OLD_LOADER} end
  if found[3] ~= server then return {FENCED} end
  return nil, not found[1]
end

-- A column is a run of ids in ARGV, each once, sorted by the page that holds it. `counts` has a
-- byte for each page used: how many ids of the run are on it; a page with more is there again. Its
-- pages follow KEYS[key], its ids follow ARGV[arg].

-- The values of a column, false where there is none, and how many they are.
local function read(key, counts, arg)
  local values, n = {}, 0
  for page = 1, #counts do
    local size = byte(counts, page)
    if size == 1 then
      values[n + 1] = call('HGET', KEYS[key + page], ARGV[arg + n + 1])
    else
      local found = call('HMGET', KEYS[key + page], unpack(ARGV, arg + n + 1, arg + n + size))
      for i = 1, size do values[n + i] = found[i] end
    end
    n = n + size
  end
  return values, n
end

-- Whether a column of so many values has one for each id.
local function is_complete(values, n)
  for i = 1, n do
    if not values[i] then return false end
  end
  return true
end

-- Writes the values of a column whose place in `changed` is set; where such a value is false, the
-- field goes.
local function write(values, changed, key, counts, arg)
  local n, line, gone = 0, {}, {}
  for page = 1, #counts do
    local size, written, removed = byte(counts, page), 0, 0
    for i = n + 1, n + size do
      if changed[i] and values[i] then
        line[written + 1], line[written + 2] = ARGV[arg + i], values[i]
        written = written + 2
      elseif changed[i] then
        removed = removed + 1
        gone[removed] = ARGV[arg + i]
      end
    end
    if written > 0 then call('HSET', KEYS[key + page], unpack(line, 1, written)) end
    if removed > 0 then call('HDEL', KEYS[key + page], unpack(gone, 1, removed)) end
    n = n + size
  end
end

-- Turns a column of units into numbers, in place; 0 where there was none. False: one is damaged.
local function units(values, n)
  for i = 1, n do
    local text = values[i]
    values[i] = text and whole(text) or 0
    if text and (values[i] == 0 or values[i] > UNITS_MAX) then return false end
  end
  return true
end

-- Whether a value on a page of requests can be a record.
local function is_record(value)
  local stage = sub(value, STAGE_AT, STAGE_AT)
  if stage == 'F' then return #value > RECORD_BYTES end
  return #value == RECORD_BYTES and find(stage, '[Q0-4]')
end

-- How many more intents may wait where accepted ones wait (KEYS[2]). What was given up there and
-- not collected yet (the last of KEYS) waits as well. Raises an error when a key holds something
-- else.
local function room(kind, envelope_max, entries_max)
  if kind == 'none' then return call('HLEN', KEYS[2]) and ITEMS_MAX end
  local num_waiting = call(kind == 'list' and 'LLEN' or 'XLEN', KEYS[2])
  return (entries_max - num_waiting - call('LLEN', KEYS[#KEYS])) * envelope_max
end

-- Writes accepted intents, request and intent in turn, where they wait (KEYS[2]).
local function enqueue(kind, accepted, num_accepted, envelope_max)
  if kind == 'none' then
    call('HSET', KEYS[2], unpack(accepted, 1, 2 * num_accepted))
    return
  end
  for first = 1, num_accepted, envelope_max do
    local entry = {}
    for i = first, math.min(first + envelope_max - 1, num_accepted) do
      entry[i - first + 1] = accepted[2 * i]
    end
    if kind == 'list' then
      call('RPUSH', KEYS[2], table.concat(entry))
    else
      call('XADD', KEYS[2], '*', 'intents', table.concat(entry))
    end
  end
end

-- What ends a script on the outbox: another installation's bucket. The entries outlive openings and
-- leave also while the bucket is being loaded or fenced, so nothing else is asked.
local function foreign(installation)
  local found = call('HMGET', KEYS[1], 'epoch', 'loaded', 'loading')
  for i = 1, 3 do
    if found[i] and sub(found[i], 1, 8) ~= installation then return {FOREIGN} end
  end
end

-- What tells an entry of an outbox list from the others: it begins with the record and the request
-- of its first intent.
local function identity(entry)
  return sub(entry, 1, IDENTITY_BYTES) .. #entry
end

-- The one group of consumers of an outbox stream, and the consumer that holds what was reclaimed.
local GROUP, ORPHANS = 'relay', 'orphans'

-- Whether the stream has its group. Raises an error when the key holds something else.
local function has_group(outbox)
  if call('XLEN', outbox) == 0 and call('EXISTS', outbox) == 0 then return false end
  for _, group in ipairs(call('XINFO', 'GROUPS', outbox)) do
    if group[2] == GROUP then return true end
  end
  return false
end

-- The first entries that a consumer holds: id, consumer, idle time and deliveries of each.
local function pending(outbox, consumer, max)
  return call('XPENDING', outbox, GROUP, '-', '+', max, consumer)
end

-- The message of a stream entry. Of one that another program wrote, all that it has.
local function body(fields)
  if #fields == 2 and fields[1] == 'intents' then return fields[2] end
  return table.concat(fields, ' ')
end

-- Appends id and message of entries to an answer.
local function tell(entries, answer)
  for _, entry in ipairs(entries) do
    local at = #answer
    answer[at + 1], answer[at + 2] = entry[1], body(entry[2])
  end
end

-- Gives pending entries to a consumer. Those that are still in the stream are appended to `answer`,
-- if there is one.
local function hand_over(outbox, consumer, entries, answer)
  if #entries == 0 then return end
  local words = {'XCLAIM', outbox, GROUP, consumer, 0}
  for i = 1, #entries do words[5 + i] = entries[i][1] end
  if not answer then words[#words + 1] = 'JUSTID' end
  local claimed = call(unpack(words))
  if answer then tell(claimed, answer) end
end

-- Gives everything that one consumer holds to another, and removes the first. Returns the number.
local function move_all(outbox, from, to)
  local moved, entries = 0
  repeat
    entries = pending(outbox, from, CLAIM_MAX)
    hand_over(outbox, to, entries)
    moved = moved + #entries
  until #entries < CLAIM_MAX
  call('XGROUP', 'DELCONSUMER', outbox, GROUP, from)
  return moved
end

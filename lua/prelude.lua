-- Functions that the scripts share. src/redis/scripts/codes.rs defines the codes and limits, and
-- inserts them above this line when a script is loaded.
--
-- Redis keeps the writes of a script that fails. So every script reads and checks all its data
-- first, and writes last: a wrong type, a wrong number or a missing key ends the script before its
-- first write. Ids stay strings: a Lua number loses digits after 2^53.

local call, sub, find = redis.call, string.sub, string.find
local byte, unpack, unpack_bytes = string.byte, unpack, struct.unpack

-- Parses digits; nil for anything else, and for a number that is not exact in a double.
local function to_number(text)
  local number = text and #text <= 16 and find(text, '^%d+$') and tonumber(text)
  if number and number < 2 ^ 53 then return number end
end

-- The number of a tag `<installation>.<number>`; nil for anything else.
local function tag_number(text)
  if sub(text, 9, 9) == '.' then return to_number(sub(text, 10)) end
end

-- Parses the fields of epoch and phase; nil for an invalid one.
local function epoch_and_phase(epoch, phase)
  local epoch_no, phase_no = epoch and tag_number(epoch), to_number(phase)
  return epoch_no, phase_no and phase_no <= PHASE_MAX and phase_no
end

-- Whether a pair of epoch and phase comes before the bucket's pair. An opening raises the epoch;
-- within an epoch the phase only grows. No pair comes before an invalid one.
local function comes_before(epoch, phase, stored_epoch, stored_phase)
  if not stored_epoch or not stored_phase then return false end
  return epoch < stored_epoch or epoch == stored_epoch and phase < stored_phase
end

-- Reads the bucket (KEYS[1]). Returns first the answer of the script if the bucket must not be
-- used: not published, of another installation, opened on another server, or damaged; then the tags
-- of its epoch and of its load, and the numbers of the given fields. With `reads` a bucket that a
-- loader holds is readable, too: it has its records until they are cleared.
local function read_bucket(reads, server, installation, ...)
  local found, fields = call('HMGET', KEYS[1], 'server', 'epoch', 'loaded', 'loading', ...), {...}
  local epoch, loaded = found[2], found[3]
  if not epoch or not loaded or found[4] and not reads then return {NOT_READY} end
  if sub(epoch, 1, 8) ~= installation then return {FOREIGN} end
  if found[1] ~= server then return {FENCED} end
  local numbers = {}
  for i = 1, #fields do
    local field, number = fields[i], to_number(found[4 + i])
    local most = field == 'phase' and PHASE_MAX or number
    if field == 'stock' or field == 'lent' then most = UNITS_MAX end
    if not number or number > most then return {CORRUPT, field} end
    numbers[i] = number
  end
  return nil, epoch, loaded, unpack(numbers)
end

-- The number after which the loans and changes of the load with this tag begin.
local function floor_of(loaded, installation)
  local load = sub(loaded, 1, 8) == installation and tag_number(loaded)
  return load and load * NUMBERS_PER_LOAD
end

-- Reads the bucket (KEYS[1]) while it is being loaded. Returns first the answer of the script if
-- this loader must not write; second, whether this loader has published the bucket before.
local function check_loader(server, installation, loader)
  local found = call('HMGET', KEYS[1], 'loading', 'loaded', 'server')
  local holder, tag = found[1] or found[2], installation .. '.' .. loader
  if not holder then return {NOT_READY} end
  if sub(holder, 1, 8) ~= installation then return {FOREIGN} end
  if holder ~= tag then return {OLD_LOADER} end
  if found[3] ~= server then return {FENCED} end
  return nil, not found[1]
end

-- A column is a run of distinct ids in ARGV, sorted by page. `counts` has a byte for each page
-- used: its number of ids; a page with more than 255 ids is repeated. The column's pages follow
-- KEYS[key], its ids follow ARGV[arg].

-- The values of a column, false for a missing one, and their number.
local function read_column(key, counts, arg)
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

-- Whether none of the first `n` values is missing.
local function is_complete(values, n)
  for i = 1, n do
    if not values[i] then return false end
  end
  return true
end

-- Writes the values of a column whose position in `changed` is set. A false value deletes its
-- field.
local function write(values, changed, key, counts, arg)
  local n, set, deleted = 0, {}, {}
  for page = 1, #counts do
    local size, written, removed = byte(counts, page), 0, 0
    for i = n + 1, n + size do
      if changed[i] and values[i] then
        set[written + 1], set[written + 2] = ARGV[arg + i], values[i]
        written = written + 2
      elseif changed[i] then
        removed = removed + 1
        deleted[removed] = ARGV[arg + i]
      end
    end
    if written > 0 then call('HSET', KEYS[key + page], unpack(set, 1, written)) end
    if removed > 0 then call('HDEL', KEYS[key + page], unpack(deleted, 1, removed)) end
    n = n + size
  end
end

-- Converts a column of units to numbers, in place; 0 for a missing value. Returns false if one is
-- damaged.
local function parse_units(values, n)
  for i = 1, n do
    local text = values[i]
    values[i] = text and to_number(text) or 0
    if text and (values[i] == 0 or values[i] > UNITS_MAX) then return false end
  end
  return true
end

-- Whether a value on a page of requests has the form of a record.
local function is_record(value)
  local state = sub(value, STATE_AT, STATE_AT)
  if state == 'Q' then return #value == QUEUED_BYTES end
  if state == 'F' then return #value > HEAD_BYTES end
  local amount_bytes = #value - ORDERED_BYTES
  return amount_bytes >= 0 and amount_bytes <= AMOUNT_BYTES_MAX and find(state, '[0-5]')
end

-- Whether an order in this state holds its units.
local function is_live(state)
  return state and find(state, '[015]')
end

-- Publishes a message about the bucket (KEYS[1]) to all processes. A process that misses it reads
-- the bucket a bit later, so an error changes nothing.
local function publish(message)
  local namespace = sub(KEYS[1], 1, find(KEYS[1], ':{', 1, true) - 1)
  redis.pcall('PUBLISH', namespace .. ':results', message)
end

-- Publishes the requests ARGV[first] to ARGV[last], whose results the bucket now has.
local function publish_results(first, last)
  publish(table.concat(ARGV, ' ', first, last))
end

-- Publishes that the bucket, which had no units, has some: the SKU is not sold out any more.
local function publish_restocked(before, stock)
  if before == 0 and stock > 0 then
    local _, _, sku = find(KEYS[1], ':{(%d+):')
    publish('restocked:' .. sku)
  end
end

-- The number of intents that the outbox can still take. Raises an error if the key has another
-- type.
local function free_capacity(kind, outbox, envelope_max, entries_max)
  if kind == 'none' then return call('HLEN', outbox) and ITEMS_MAX end
  local num_waiting = call(kind == 'list' and 'LLEN' or 'XLEN', outbox)
  return (entries_max - num_waiting) * envelope_max
end

-- Writes accepted intents, given as request and intent in turn, to the outbox.
local function enqueue(kind, outbox, accepted, num_accepted, envelope_max)
  if kind == 'none' then
    call('HSET', outbox, unpack(accepted, 1, 2 * num_accepted))
    return
  end
  for first = 1, num_accepted, envelope_max do
    local entry = {}
    for i = first, math.min(first + envelope_max - 1, num_accepted) do
      entry[i - first + 1] = accepted[2 * i]
    end
    if kind == 'list' then
      call('RPUSH', outbox, table.concat(entry))
    else
      call('XADD', outbox, '*', 'intents', table.concat(entry))
    end
  end
end

-- Returns the answer of an outbox script if the bucket (KEYS[1]) belongs to another installation.
-- Entries are kept over openings and removed also while the bucket is being loaded or fenced, so
-- nothing else is checked.
local function check_installation(installation)
  local found = call('HMGET', KEYS[1], 'epoch', 'loaded', 'loading')
  for i = 1, 3 do
    if found[i] and sub(found[i], 1, 8) ~= installation then return {FOREIGN} end
  end
end

-- The identity of an entry of an outbox list: its head, with the record and the request of its
-- first intent, and its length.
local function identity(entry)
  return sub(entry, 1, IDENTITY_BYTES) .. #entry
end

-- The consumer group of an outbox stream, and the consumer of reclaimed entries.
local GROUP, ORPHANS = 'relay', 'orphans'

-- The last id that the stream's group has delivered; nil without the group. Raises an error if the
-- key has another type.
local function last_delivered(outbox)
  if call('XLEN', outbox) == 0 and call('EXISTS', outbox) == 0 then return nil end
  for _, group in ipairs(call('XINFO', 'GROUPS', outbox)) do
    if group[2] == GROUP then return group[8] end
  end
end

-- The first pending entries of a consumer: id, consumer, idle time and deliveries of each.
local function pending(outbox, consumer, max)
  return call('XPENDING', outbox, GROUP, '-', '+', max, consumer)
end

-- The message of a stream entry; all fields and values of one that another program wrote.
local function message_of(fields)
  if #fields == 2 and fields[1] == 'intents' then return fields[2] end
  return table.concat(fields, ' ')
end

-- Appends the id and message of each entry to an answer.
local function append_entries(entries, answer)
  for _, entry in ipairs(entries) do
    local at = #answer
    answer[at + 1], answer[at + 2] = entry[1], message_of(entry[2])
  end
end

-- Assigns pending entries to a consumer. With `answer`, appends those that are still in the stream.
local function hand_over(outbox, consumer, entries, answer)
  if #entries == 0 then return end
  local command = {'XCLAIM', outbox, GROUP, consumer, 0}
  for i = 1, #entries do command[5 + i] = entries[i][1] end
  if not answer then command[#command + 1] = 'JUSTID' end
  local claimed = call(unpack(command))
  if answer then append_entries(claimed, answer) end
end

-- Assigns all pending entries of one consumer to another, and removes the first consumer. Returns
-- the number of entries.
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

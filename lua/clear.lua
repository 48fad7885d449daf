#!lua
-- Empties some pages of a bucket that its loader holds, and deletes the bucket's counts. Requests
-- without a ledger decision stay on their pages, so that a loader that crashes loses none; so do
-- their intents, the entries of the outbox, and the pair of epoch and phase.
--
-- KEYS: bucket, moves, unsettled, pages of requests.., pages of buyers.. (as many)
-- ARGV: server, installation, loader
-- Answer: OK, request and record in turn of each request that stays.
local bucket, moves, unsettled = KEYS[1], KEYS[2], KEYS[3]
local server, installation, loader = ARGV[1], ARGV[2], ARGV[3]
local holder = installation .. '.' .. loader
local found = call('HMGET', bucket, 'loading', 'loaded', 'epoch', 'phase', 'changes')
local tag, epoch, phase = found[1] or found[2], found[3], found[4]
if not tag then return {NOT_READY} end
if sub(tag, 1, 8) ~= installation then return {FOREIGN} end
if found[1] ~= holder then return {OLD_LOADER} end

local fields = {'loading', holder, 'server', server}
if epoch and phase and tag_number(epoch) and to_number(phase) then
  fields[5], fields[6], fields[7], fields[8] = 'epoch', epoch, 'phase', phase
end
if found[5] then fields[#fields + 1], fields[#fields + 2] = 'changes', found[5] end
call('DEL', bucket, moves)
call('HSET', bucket, unpack(fields))
-- A key of another type holds no request.
local kind = call('TYPE', unsettled).ok
if kind ~= 'hash' then call('DEL', unsettled) end

local answer, n, pages = {OK}, 1, (#KEYS - 3) / 2
for at = 4, 3 + pages do
  local page, removed = KEYS[at], {}
  if call('TYPE', page).ok == 'hash' then
    local rows = call('HGETALL', page)
    for i = 1, #rows, 2 do
      local request, record = rows[i], rows[i + 1]
      if is_record(record) and sub(record, STATE_AT, STATE_AT) == 'Q' then
        answer[n + 1], answer[n + 2] = request, record
        n = n + 2
      else
        removed[#removed + 1] = request
      end
    end
    for first = 1, #removed, ITEMS_MAX do
      call('HDEL', page, unpack(removed, first, math.min(first + ITEMS_MAX - 1, #removed)))
    end
  else
    call('DEL', page)
  end
end
for at = 4 + pages, #KEYS do call('DEL', KEYS[at]) end
return answer

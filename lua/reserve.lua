#!lua
-- Decides a batch of reservations, in order, in one step.
--
-- KEYS: bucket, outbox, pages of requests.., pages of buyers..
-- ARGV: server, installation, epoch, policy, limit, outbox kind, intents of an entry, most entries,
--       touch, counts of requests, counts of buyers, plan, requests.., intents.., buyers..
-- The plan has 8 bytes for each reservation: place of its request, place of its buyer, units.
-- Answer: OK, stock, lent, one item for each reservation.
local bad, opened, phase, stock, lent, _, _, _, queued = bucket(ARGV[1], ARGV[2])
if bad then return bad end
local is_current = opened == tonumber(ARGV[3])
local is_one, is_quota, limit = ARGV[4] == 'one', ARGV[4] == 'quota', tonumber(ARGV[5])
local kind, envelope_max, touch = ARGV[6], tonumber(ARGV[7]), ARGV[9] == '1'
local request_counts, buyer_counts, plan = ARGV[10], ARGV[11], ARGV[12]
local size = #plan / 8
if size > ITEMS_MAX then return {TOO_MANY} end

local most = room(kind, envelope_max, tonumber(ARGV[8]))
local requests_at, request_pages_at = 12, 2
local records, num_requests = read(request_pages_at, request_counts, requests_at)
local intents_at = requests_at + num_requests
local buyers_at, buyer_pages_at = intents_at + size, request_pages_at + #request_counts
local is_selling = is_current and phase == PHASE_OPEN
local held, num_buyers = {}, 0
-- Repeats are answered without a look at their buyers.
if is_selling and not is_complete(records, num_requests) then
  held, num_buyers = read(buyer_pages_at, buyer_counts, buyers_at)
  if is_quota and not units(held, num_buyers) then return {CORRUPT, 'buyers'} end
end

-- Later reservations of the batch see what earlier ones took, because both share a place.
local answer, accepted, new_requests, new_buyers = {OK, stock, lent}, {}, {}, {}
local num_accepted, at = 0, 1
for i = 1, size do
  local r, b, quantity
  r, b, quantity, at = unpack_bytes('>HHI4', plan, at)
  local intent, known, item = ARGV[intents_at + i], records[r], RESERVED
  if known then
    if not is_record(known) then return {CORRUPT, 'requests'} end
    item = sub(known, 1, CONTENT_BYTES) == sub(intent, 1, CONTENT_BYTES) and 'R' .. known or REUSED
  elseif not is_current then
    item = STALE
  elseif not is_selling then
    item = phase == PHASE_CLOSED and ENDED or NOT_STARTED
  elseif is_one and held[b] then
    if #held[b] > 19 or not find(held[b], '^[1-9]%d*$') then return {CORRUPT, 'buyers'} end
    item = 'P' .. held[b]
  elseif is_quota and held[b] + quantity > limit then
    item = 'L' .. held[b]
  elseif stock < quantity then
    item = SHORT
  elseif num_accepted >= most then
    item = FULL
  else
    stock = stock - quantity
    records[r], new_requests[r] = sub(intent, 1, RECORD_BYTES), true
    if is_one then
      held[b], new_buyers[b] = ARGV[requests_at + r], true
    elseif is_quota then
      held[b], new_buyers[b] = held[b] + quantity, true
    end
    num_accepted = num_accepted + 1
    accepted[2 * num_accepted - 1], accepted[2 * num_accepted] = ARGV[requests_at + r], intent
  end
  answer[3 + i] = item
end

-- Should the server die between two writes: an intent without its units is one too many to ask the
-- ledger about, units without their intent would be lost.
if num_accepted > 0 then
  enqueue(kind, accepted, num_accepted, envelope_max)
  call('HSET', KEYS[1], 'stock', stock, 'queued', queued + num_accepted)
  write(held, new_buyers, buyer_pages_at, buyer_counts, buyers_at)
  write(records, new_requests, request_pages_at, request_counts, requests_at)
end
-- WAIT waits for this connection's own last write only; a batch of repeats has none.
if touch then call('HSET', KEYS[1], 'touched', '1') end
answer[2] = stock
return answer

#!lua
-- Decides a batch of reservations, in order, in one step.
--
-- KEYS: bucket, outbox, pages of requests.., pages of buyers.., dead where the outbox has a kind
-- ARGV: server, installation, epoch, quota or 0, outbox kind, intents of an entry, most entries,
--       touch, counts of requests, counts of buyers, plan, requests.., intents.., buyers..
-- Buyers come under a quota only. Where each may order once the request follows from the buyer, so
-- that its page says whether the buyer has ordered.
-- The plan has 8 bytes for each reservation: place of its request, place of its buyer, units.
-- Answer: OK, stock, lent, changes, one item for each reservation.
local server, installation, epoch, quota = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local kind, envelope_max, entries_max = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local touch, request_counts, buyer_counts, plan = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local bad, tag, _, phase, stock, lent, queued, changes = bucket(false, server, installation,
  'phase', 'stock', 'lent', 'queued', 'changes')
if bad then return bad end
local opened = tagged(tag)
if not opened then return {CORRUPT, 'epoch'} end
local is_current, is_quota, size = opened == tonumber(epoch), quota > 0, #plan / 8
if size > ITEMS_MAX then return {TOO_MANY} end

local most = room(kind, envelope_max, entries_max)
local requests_at, request_pages_at = 11, 2
local records, num_requests = read(request_pages_at, request_counts, requests_at)
local intents_at = requests_at + num_requests
local buyers_at, buyer_pages_at = intents_at + size, request_pages_at + #request_counts
local is_selling = is_current and phase == PHASE_OPEN
local held, num_buyers = {}, 0
-- Repeats are answered without a look at their buyers.
if is_quota and is_selling and not is_complete(records, num_requests) then
  held, num_buyers = read(buyer_pages_at, buyer_counts, buyers_at)
  if not units(held, num_buyers) then return {CORRUPT, 'buyers'} end
end

-- Later reservations of the batch see what earlier ones took, because both share a place.
local answer, accepted, new_requests, new_buyers = {OK, stock, lent, changes}, {}, {}, {}
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
  elseif is_quota and held[b] + quantity > quota then
    item = 'L' .. held[b]
  elseif stock < quantity then
    item = SHORT
  elseif num_accepted >= most then
    item = FULL
  else
    stock = stock - quantity
    records[r], new_requests[r] = sub(intent, 1, RECORD_BYTES), true
    if is_quota then held[b], new_buyers[b] = held[b] + quantity, true end
    num_accepted = num_accepted + 1
    accepted[2 * num_accepted - 1], accepted[2 * num_accepted] = ARGV[requests_at + r], intent
  end
  answer[4 + i] = item
end

-- Should the server die between two writes: an intent without its units is one too many to ask the
-- ledger about, units without their intent would be lost.
if num_accepted > 0 then
  changes = changes + 1
  enqueue(kind, accepted, num_accepted, envelope_max)
  call('HSET', KEYS[1], 'stock', stock, 'queued', queued + num_accepted, 'changes', changes)
  if is_quota then write(held, new_buyers, buyer_pages_at, buyer_counts, buyers_at) end
  write(records, new_requests, request_pages_at, request_counts, requests_at)
end
-- WAIT waits for this connection's own last write only; a batch of repeats has none.
if touch == '1' then call('HSET', KEYS[1], 'touched', '1') end
answer[2], answer[4] = stock, changes
return answer

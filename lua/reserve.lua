#!lua
-- Decides a batch of reservations in order.
--
-- KEYS: bucket, outbox (kind none: unsettled), pages of requests.., of buyers..
-- ARGV: server, installation, epoch, quota or 0, outbox kind, intents of an entry, most entries,
--       touch, counts of requests, counts of buyers, plan, requests.., intents.., buyers..
-- Buyers are passed under a quota only. If each buyer may order once, the request id follows from
-- the buyer, so that the record of the request shows whether the buyer has ordered.
-- The plan has 8 bytes for each reservation: position of its request, position of its buyer, units.
-- Answer: OK, stock, lent, changes, one item for each reservation: of a repeat R and the record, or
-- Q and the intent that is stored without an outbox.
local bucket, outbox = KEYS[1], KEYS[2]
local server, installation, epoch, quota = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local kind, envelope_max, entries_max = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local touch, request_counts, buyer_counts, plan = ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local bad, tag, _, phase, stock, lent, queued, changes = read_bucket(false, server, installation,
  'phase', 'stock', 'lent', 'queued', 'changes')
if bad then return bad end
local opened = tag_number(tag)
if not opened then return {CORRUPT, 'epoch'} end
local is_current, is_quota, size = opened == tonumber(epoch), quota > 0, #plan / 8
if size > ITEMS_MAX then return {TOO_MANY} end

local accepted_max = free_capacity(kind, outbox, envelope_max, entries_max)
-- The positions in ARGV and KEYS before the first request and its page.
local requests_at, request_pages_at = 11, 2
local records, num_requests = read_column(request_pages_at, request_counts, requests_at)
local intents_at = requests_at + num_requests
local buyers_at, buyer_pages_at = intents_at + size, request_pages_at + #request_counts
local is_selling = is_current and phase == PHASE_OPEN
local held, num_buyers = {}, 0
-- Buyers are not read if every reservation is a repeat.
if is_quota and is_selling and not is_complete(records, num_requests) then
  held, num_buyers = read_column(buyer_pages_at, buyer_counts, buyers_at)
  if not parse_units(held, num_buyers) then return {CORRUPT, 'buyers'} end
end

-- Later reservations of the batch read what earlier ones wrote, because they share positions.
local answer, accepted, new_requests, new_buyers = {OK, stock, lent, changes}, {}, {}, {}
local num_accepted, at = 0, 1
for i = 1, size do
  local r, b, quantity
  r, b, quantity, at = unpack_bytes('>HHI4', plan, at)
  local intent, stored, item = ARGV[intents_at + i], records[r], RESERVED
  if stored then
    if not is_record(stored) then return {CORRUPT, 'requests'} end
    local is_repeat = sub(stored, 1, CONTENT_BYTES) == sub(intent, 1, CONTENT_BYTES)
    item = is_repeat and 'R' .. stored or REUSED
    if is_repeat and kind == 'none' and sub(stored, STATE_AT, STATE_AT) == 'Q' then
      local kept = call('HGET', outbox, ARGV[requests_at + r])
      item = kept and 'Q' .. kept or item
    end
  elseif not is_current then
    item = STALE
  elseif not is_selling then
    item = phase == PHASE_CLOSED and ENDED or NOT_STARTED
  elseif is_quota and held[b] + quantity > quota then
    item = 'L' .. held[b]
  elseif stock < quantity then
    item = SHORT
  elseif num_accepted >= accepted_max then
    item = FULL
  else
    stock = stock - quantity
    records[r], new_requests[r] = sub(intent, 1, QUEUED_BYTES), true
    if is_quota then held[b], new_buyers[b] = held[b] + quantity, true end
    num_accepted = num_accepted + 1
    accepted[2 * num_accepted - 1], accepted[2 * num_accepted] = ARGV[requests_at + r], intent
  end
  answer[4 + i] = item
end

-- If the server crashes between two writes: an intent without its units is submitted needlessly;
-- units without their intent would be lost.
if num_accepted > 0 then
  changes = changes + 1
  enqueue(kind, outbox, accepted, num_accepted, envelope_max)
  call('HSET', bucket, 'stock', stock, 'queued', queued + num_accepted, 'changes', changes)
  if is_quota then write(held, new_buyers, buyer_pages_at, buyer_counts, buyers_at) end
  write(records, new_requests, request_pages_at, request_counts, requests_at)
end
-- WAIT covers the connection's own last write only; a batch of repeats has none.
if touch == '1' then call('HSET', bucket, 'touched', '1') end
answer[2], answer[4] = stock, changes
return answer

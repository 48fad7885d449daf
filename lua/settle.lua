#!lua flags=allow-oom
-- Records committed orders, and each later change of an order: a larger version replaces the
-- record. Units that a live order took, and that its change no longer takes, return to the stock,
-- once. An order that has ended moves nothing any more.
--
-- KEYS: bucket, unsettled, pages of requests.., pages of buyers..
-- ARGV: server, installation, counts of requests, counts of buyers, plan, requests.., records..,
--       buyers.. (under a quota only)
-- The plan has 8 bytes for each order: position of its request, position of its buyer, units that
-- count for the buyer's limit.
-- Answer: OK, stock, lent, changes, one item for each order.
local bucket, unsettled = KEYS[1], KEYS[2]
local server, installation = ARGV[1], ARGV[2]
local request_counts, buyer_counts, plan = ARGV[3], ARGV[4], ARGV[5]
local bad, _, _, stock, lent, queued, changes, returned = read_bucket(true, server, installation,
  'stock', 'lent', 'queued', 'changes', 'returned')
if bad then return bad end
local is_quota, size = #buyer_counts > 0, #plan / 8
if size > ITEMS_MAX then return {TOO_MANY} end

-- Stored intents of this bucket; 0 with an outbox, which stores them instead.
local num_kept = call('HLEN', unsettled)
-- The positions in ARGV and KEYS before the first request and its page.
local requests_at, request_pages_at = 5, 2
local records, num_requests = read_column(request_pages_at, request_counts, requests_at)
local records_at = requests_at + num_requests
local buyers_at, buyer_pages_at = records_at + size, request_pages_at + #request_counts
local held, num_buyers

local answer, done, new_requests, new_buyers = {OK, stock, lent, changes}, {}, {}, {}
local num_done, num_settled, num_new, is_moved, at = 0, 0, 0, false, 1
-- The stock without the units that return.
local least = stock
for i = 1, size do
  local r, b, counted
  r, b, counted, at = unpack_bytes('>HHI4', plan, at)
  local record, stored, item = ARGV[records_at + i], records[r], SETTLED
  local quantity = unpack_bytes('>I3', record, QUANTITY_AT)
  local state = stored and sub(stored, STATE_AT, STATE_AT)
  if not stored then
    -- The order was committed while the bucket was loaded from the ledger: its units are not free.
    item = ADOPTED
  elseif not is_record(stored) then
    return {CORRUPT, 'requests'}
  elseif sub(stored, 1, CONTENT_BYTES) ~= sub(record, 1, CONTENT_BYTES) then
    item = MISMATCH
  elseif state == 'F' then
    item = IS_FAILED
  elseif state ~= 'Q' then
    local is_later = unpack_bytes('>H', record, VERSION_AT) > unpack_bytes('>H', stored, VERSION_AT)
    item = is_later and ADVANCED or REPEAT
  end
  if item == SETTLED or item == ADOPTED or item == ADVANCED then
    local takes, took = is_live(sub(record, STATE_AT, STATE_AT)), state == 'Q' or is_live(state)
    if not stored and takes then
      stock, least = math.max(stock - quantity, 0), math.max(least - quantity, 0)
    elseif not takes and (took or not stored) then
      -- The units of an order that ended before the bucket learned of it are free already.
      stock, returned = took and stock + quantity or stock, returned + quantity
    end
    is_moved = is_moved or not stored or took and not takes

    -- Buyers change only with orders that this bucket never accepted or that end, which is rare.
    local change = not stored and counted or took and counted - quantity or 0
    if is_quota and change ~= 0 then
      if not held then
        held, num_buyers = read_column(buyer_pages_at, buyer_counts, buyers_at)
        if not parse_units(held, num_buyers) then return {CORRUPT, 'buyers'} end
      end
      local units = (held[b] or 0) + change
      held[b], new_buyers[b] = units > 0 and units, true
    end
    records[r], new_requests[r], num_new = record, true, num_new + 1
    if item == SETTLED then num_settled = num_settled + 1 end
  end
  -- The intent of a repeat is left from before the bucket was loaded.
  if item ~= MISMATCH and item ~= IS_FAILED then
    num_done = num_done + 1
    done[num_done] = ARGV[requests_at + r]
  end
  answer[4 + i] = item
end

if num_settled > queued then return {CORRUPT, 'queued'} end

-- Units leave the stock before the record says that they are taken, and return after it says that
-- they are free: units that return twice would be sold twice. The intent is deleted last: one too
-- many is submitted again, one too few would be lost.
if num_new > 0 then
  if is_moved then
    changes = changes + 1
    call('HSET', bucket, 'stock', least, 'changes', changes)
  end
  if held then write(held, new_buyers, buyer_pages_at, buyer_counts, buyers_at) end
  write(records, new_requests, request_pages_at, request_counts, requests_at)
  if num_settled > 0 then call('HSET', bucket, 'queued', queued - num_settled) end
  if is_moved then call('HSET', bucket, 'stock', stock, 'returned', returned) end
  publish_results(requests_at + 1, records_at)
  publish_restocked(answer[2], stock)
end
if num_kept > 0 and num_done > 0 then call('HDEL', unsettled, unpack(done, 1, num_done)) end
answer[2], answer[4] = stock, changes
return answer

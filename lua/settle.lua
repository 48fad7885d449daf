#!lua flags=allow-oom
-- Records committed orders.
--
-- KEYS: bucket, unsettled, pages of requests.., pages of buyers..
-- ARGV: server, installation, counts of requests, counts of buyers, plan, requests.., records..,
--       buyers.. (under a quota only)
-- The plan has 8 bytes for each order: position of its request, position of its buyer, units.
-- Answer: OK, stock, lent, changes, one item for each order.
local bucket, unsettled = KEYS[1], KEYS[2]
local server, installation = ARGV[1], ARGV[2]
local request_counts, buyer_counts, plan = ARGV[3], ARGV[4], ARGV[5]
local bad, _, _, stock, lent, queued, changes = read_bucket(true, server, installation,
  'stock', 'lent', 'queued', 'changes')
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
-- Buyers change only with orders that this bucket never accepted, which is rare.
if is_quota and not is_complete(records, num_requests) then
  held, num_buyers = read_column(buyer_pages_at, buyer_counts, buyers_at)
  if not parse_units(held, num_buyers) then return {CORRUPT, 'buyers'} end
end

local answer, done, new_requests, new_buyers = {OK, stock, lent, changes}, {}, {}, {}
local num_done, num_settled, num_adopted, at = 0, 0, 0, 1
for i = 1, size do
  local r, b, quantity
  r, b, quantity, at = unpack_bytes('>HHI4', plan, at)
  local record, stored, item = ARGV[records_at + i], records[r], SETTLED
  local stage = stored and sub(stored, STAGE_AT, STAGE_AT)
  if not stored then
    -- The order was committed while the bucket was loaded from the ledger: its units are not free.
    item, num_adopted = ADOPTED, num_adopted + 1
    if find(record, '^[01]', STAGE_AT) then
      stock = quantity < stock and stock - quantity or 0
      if is_quota then held[b], new_buyers[b] = held[b] + quantity, true end
    end
  elseif not is_record(stored) then
    return {CORRUPT, 'requests'}
  elseif sub(stored, 1, CONTENT_BYTES) ~= sub(record, 1, CONTENT_BYTES) then
    item = MISMATCH
  elseif stage ~= 'Q' then
    item = stage == 'F' and IS_FAILED or REPEAT
  else
    num_settled = num_settled + 1
  end
  if item == SETTLED or item == ADOPTED then
    records[r], new_requests[r] = record, true
  end
  -- The intent of a repeat is left from before the bucket was loaded.
  if item == SETTLED or item == ADOPTED or item == REPEAT then
    num_done = num_done + 1
    done[num_done] = ARGV[requests_at + r]
  end
  answer[4 + i] = item
end

if num_settled > queued then return {CORRUPT, 'queued'} end

-- The intent is deleted last: one too many is submitted again, one too few would be lost.
if num_done > 0 then
  if num_adopted > 0 then
    changes = changes + 1
    call('HSET', bucket, 'stock', stock, 'changes', changes)
  end
  if held then write(held, new_buyers, buyer_pages_at, buyer_counts, buyers_at) end
  write(records, new_requests, request_pages_at, request_counts, requests_at)
  if num_settled > 0 then call('HSET', bucket, 'queued', queued - num_settled) end
  if num_kept > 0 then call('HDEL', unsettled, unpack(done, 1, num_done)) end
end
answer[2], answer[4] = stock, changes
return answer

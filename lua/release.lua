#!lua flags=allow-oom
-- Records refusals of the ledger and subtracts the units of their buyers. The units return to the
-- stock if the ledger still has them, and only with the first call. For a request without a record
-- the bucket has taken no units: the refusal is recorded, and the stock stays.
--
-- KEYS: bucket, unsettled, pages of requests.., pages of buyers..
-- ARGV: server, installation, counts of requests, counts of buyers, plan, requests.., records..,
--       buyers.. (under a quota only)
-- The plan has 8 bytes for each refusal: position of its request, position of its buyer, 1 if the
-- units return to the stock.
-- Answer: OK, stock, lent, changes, one item for each refusal.
local bucket, unsettled = KEYS[1], KEYS[2]
local server, installation = ARGV[1], ARGV[2]
local request_counts, buyer_counts, plan = ARGV[3], ARGV[4], ARGV[5]
local bad, _, _, stock, lent, queued, changes, released, failed = read_bucket(true, server,
  installation, 'stock', 'lent', 'queued', 'changes', 'released', 'failed')
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
local held, num_buyers = read_column(buyer_pages_at, buyer_counts, buyers_at)
if not parse_units(held, num_buyers) then return {CORRUPT, 'buyers'} end

local answer, done, new_requests, new_buyers = {OK, stock, lent, changes}, {}, {}, {}
local num_done, num_released, before, at = 0, 0, failed, 1
for i = 1, size do
  local r, b, is_returned
  r, b, is_returned, at = unpack_bytes('>HHI4', plan, at)
  local record, stored, item = ARGV[records_at + i], records[r], RELEASED
  local state = stored and sub(stored, STATE_AT, STATE_AT)
  if not stored then
    item = UNKNOWN
    records[r], new_requests[r] = record, true
    failed = failed + 1
    if is_returned == 1 then released = released + unpack_bytes('>I3', record, QUANTITY_AT) end
  elseif not is_record(stored) then
    return {CORRUPT, 'requests'}
  elseif sub(stored, 1, CONTENT_BYTES) ~= sub(record, 1, CONTENT_BYTES) then
    item = MISMATCH
  elseif state ~= 'Q' then
    item = state == 'F' and REPEAT or IS_ORDERED
  else
    local quantity = unpack_bytes('>I3', stored, QUANTITY_AT)
    -- The new record keeps the time of the request from the old one.
    local placed_at, reason = sub(stored, STATE_AT + 1, HEAD_BYTES), sub(record, HEAD_BYTES + 1)
    records[r] = sub(record, 1, STATE_AT) .. placed_at .. reason
    new_requests[r] = true
    failed, num_released = failed + 1, num_released + 1
    if is_returned == 1 then
      stock, released = stock + quantity, released + quantity
    end
    local units = is_quota and held[b] or 0
    if units > 0 then
      held[b], new_buyers[b] = units > quantity and units - quantity, true
    end
  end
  -- The intent of a repeat or an unknown request is left from before the bucket was loaded.
  if item == RELEASED or item == UNKNOWN or item == REPEAT then
    num_done = num_done + 1
    done[num_done] = ARGV[requests_at + r]
  end
  answer[4 + i] = item
end

if num_released > queued then return {CORRUPT, 'queued'} end

-- The record is written before the units: units that return twice would be sold twice.
write(records, new_requests, request_pages_at, request_counts, requests_at)
write(held, new_buyers, buyer_pages_at, buyer_counts, buyers_at)
if failed ~= before then
  changes = changes + 1
  call('HSET', bucket, 'stock', stock, 'released', released, 'failed', failed, 'queued',
    queued - num_released, 'changes', changes)
  publish_results(requests_at + 1, records_at)
  publish_restocked(answer[2], stock)
end
if num_kept > 0 and num_done > 0 then call('HDEL', unsettled, unpack(done, 1, num_done)) end
answer[2], answer[4] = stock, changes
return answer

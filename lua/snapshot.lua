#!lua flags=no-writes
-- The counts of the bucket at one instant.
--
-- KEYS: bucket, unsettled, moves, pages of requests.., pages of buyers..
-- ARGV: server, installation
-- Answer: OK, epoch, phase, stock, lent, changes, released, returned, failed, queued, intents kept,
--         requests, buyers, last change of the stock, moves (field and value in turn).
local unsettled, moves, server, installation = KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local bad, tag, _, phase, stock, lent, changes, released, returned, failed, queued, change =
  read_bucket(false, server, installation, 'phase', 'stock', 'lent', 'changes', 'released',
    'returned', 'failed', 'queued', 'stock_change')
if bad then return bad end
local opened = tag_number(tag)
if not opened then return {CORRUPT, 'epoch'} end
local pages, requests, buyers = (#KEYS - 3) / 2, 0, 0
for i = 4, 3 + pages do requests = requests + call('HLEN', KEYS[i]) end
for i = 4 + pages, #KEYS do buyers = buyers + call('HLEN', KEYS[i]) end
return {OK, opened, phase, stock, lent, changes, released, returned, failed, queued,
  call('HLEN', unsettled), requests, buyers, change, call('HGETALL', moves)}

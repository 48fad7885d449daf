#!lua
-- Adds the bucket's units of a change of the SKU's stock, once, in the order of the changes. A load
-- enters the units of all changes that the ledger had recorded.
--
-- KEYS: bucket
-- ARGV: server, installation, number of the change, the bucket's units
-- Answer: OK, stock, lent, changes, 1 if the change is in the bucket now, 0 if an earlier one is
--         missing.
local bucket = KEYS[1]
local server, installation, no, added = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local bad, _, _, stock, lent, changes, last = read_bucket(false, server, installation,
  'stock', 'lent', 'changes', 'stock_change')
if bad then return bad end
if no <= last then return {OK, stock, lent, changes, 1} end
if no > last + 1 then return {OK, stock, lent, changes, 0} end

-- Processes that know the SKU as sold out read the bucket again.
if added > 0 then changes = changes + 1 end
call('HSET', bucket, 'stock', stock + added, 'changes', changes, 'stock_change', no)
publish_restocked(stock, stock + added)
return {OK, stock + added, lent, changes, 1}

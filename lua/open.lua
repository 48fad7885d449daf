#!lua
-- Publishes a loaded bucket, in the loader's epoch and phase, or in a later pair that was set
-- during the load.
--
-- KEYS: bucket
-- ARGV: server, installation, loader, epoch, phase, stock, units released, units returned,
--       requests failed, requests queued, 1 if no request was loaded, last change of the stock
-- Answer: OK, 1 if the bucket was published now, 0 if this loader has published it before.
local bucket, server, installation, loader = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local epoch, phase, stock = ARGV[4], ARGV[5], ARGV[6]
local released, returned, failed, queued = ARGV[7], ARGV[8], ARGV[9], ARGV[10]
local is_new, stock_change = ARGV[11] == '1', ARGV[12]
local bad, is_open = check_loader(server, installation, loader)
if bad then return bad end
if is_open then return {OK, 0} end
local found = call('HMGET', bucket, 'epoch', 'phase')
local stored_epoch, stored_phase = epoch_and_phase(found[1], found[2])
if comes_before(tonumber(epoch), tonumber(phase), stored_epoch, stored_phase) then
  epoch, phase = sub(found[1], 10), found[2]
end
local tag = installation .. '.'
-- The first number of a load means that the bucket has never accepted a request.
local changes = tonumber(loader) * NUMBERS_PER_LOAD + (is_new and 0 or 1)
call('HSET', bucket, 'epoch', tag .. epoch, 'phase', phase, 'stock', stock, 'lent', 0,
  'queued', queued, 'released', released, 'returned', returned, 'failed', failed,
  'changes', changes, 'stock_change', stock_change, 'loaded', tag .. loader)
call('HDEL', bucket, 'loading')
-- While it was loaded the bucket sold nothing: processes may know the SKU as sold out.
publish_restocked(0, tonumber(stock))
return {OK, 1}

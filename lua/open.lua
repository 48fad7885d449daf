#!lua
-- Publishes the bucket that was loaded. From here on it is sold from, in the phase of the opening
-- that the loader knows, or in the one that was set meanwhile when that is further on.
--
-- KEYS: bucket
-- ARGV: server, installation, loader, epoch, phase, stock, units released, requests failed,
--       requests queued, 1 when no request at all was loaded
-- Answer: OK, 1 when it was published now, 0 when this loader did so before.
local server, installation, loader = ARGV[1], ARGV[2], ARGV[3]
local epoch, phase, stock = ARGV[4], ARGV[5], ARGV[6]
local released, failed, queued, is_new = ARGV[7], ARGV[8], ARGV[9], ARGV[10] == '1'
local bad, is_open = loading(server, installation, loader)
if bad then return bad end
if is_open then return {OK, 0} end
local found = call('HMGET', KEYS[1], 'epoch', 'phase')
local opened, stage = pair(found[1], found[2])
if comes_before(tonumber(epoch), tonumber(phase), opened, stage) then
  epoch, phase = sub(found[1], 10), found[2]
end
local tag = installation .. '.'
-- Whoever reads the first number of a load knows that nothing was ever accepted.
local changes = tonumber(loader) * NUMBERS_PER_LOAD + (is_new and 0 or 1)
call('HSET', KEYS[1], 'epoch', tag .. epoch, 'phase', phase, 'stock', stock, 'lent', 0,
  'queued', queued, 'released', released, 'failed', failed, 'changes', changes,
  'loaded', tag .. loader)
call('HDEL', KEYS[1], 'loading')
return {OK, 1}

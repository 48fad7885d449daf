#!lua
-- Publishes the bucket that was loaded. From here on it is sold from.
--
-- KEYS: bucket
-- ARGV: server, installation, loader, epoch, phase, stock, units released, requests failed,
--       requests queued
-- Answer: OK, 1 when it was published now, 0 when this loader did so before.
local bad, is_open = loading(ARGV[1], ARGV[2], ARGV[3])
if bad then return bad end
if is_open then return {OK, 0} end
local tag = ARGV[2] .. '.'
call('HSET', KEYS[1], 'epoch', tag .. ARGV[4], 'phase', ARGV[5], 'stock', ARGV[6], 'lent', 0,
  'queued', ARGV[9], 'released', ARGV[7], 'failed', ARGV[8], 'loaded', tag .. ARGV[3])
call('HDEL', KEYS[1], 'loading')
return {OK, 1}

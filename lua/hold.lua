#!lua
-- Holds the bucket for a loader and changes nothing else: from here on the bucket accepts nothing,
-- and accepted requests stay. A key of another type holds no data to keep; it is deleted.
--
-- KEYS: bucket
-- ARGV: server, installation, loader
-- Answer: OK, 1 if the bucket is held from now on, 0 if this loader held it before.
local bucket, server, installation, loader = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local exists = call('TYPE', bucket).ok == 'hash'
local found = exists and call('HMGET', bucket, 'epoch', 'loaded', 'loading') or {}
for i = 1, 3 do
  if found[i] and sub(found[i], 1, 8) ~= installation then return {FOREIGN} end
end
-- A late step of an earlier loader must not hold what a later one has loaded. An invalid number
-- counts as older than every loader.
local loaded = found[2] and tag_number(found[2]) or -1
local held = found[3] and tag_number(found[3]) or -1
if loaded >= loader or held > loader then return {OLD_LOADER} end
if held == loader then return {OK, 0} end

if not exists then
  call('DEL', bucket)
  call('HSET', bucket, 'server', server)
end
call('HSET', bucket, 'loading', installation .. '.' .. ARGV[3])
return {OK, 1}

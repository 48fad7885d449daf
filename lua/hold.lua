#!lua
-- Holds the bucket for a loader, and changes nothing else: nothing is reserved from here on, and
-- what was accepted stays where it is. A key of another type holds nothing that can be kept.
--
-- KEYS: bucket
-- ARGV: server, installation, loader
-- Answer: OK, 1 when the bucket is held from now on, 0 when this loader held it before.
local key, server, installation, loader = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local is_there = call('TYPE', key).ok == 'hash'
local found = is_there and call('HMGET', key, 'epoch', 'loaded', 'loading') or {}
for i = 1, 3 do
  if found[i] and sub(found[i], 1, 8) ~= installation then return {FOREIGN} end
end
-- A step of a loader that comes late must not hold what others have loaded since. A number that
-- cannot be read is older than every loader.
local loaded, held = found[2] and tagged(found[2]) or -1, found[3] and tagged(found[3]) or -1
if loaded >= loader or held > loader then return {OLD_LOADER} end
if held == loader then return {OK, 0} end

if not is_there then
  call('DEL', key)
  call('HSET', key, 'server', server)
end
call('HSET', key, 'loading', installation .. '.' .. ARGV[3])
return {OK, 1}

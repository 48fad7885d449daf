#!lua
-- Empties the bucket, so that it can be loaded from the ledger. Nobody may sell from it until it is
-- opened. Intents without an answer stay, and so do entries of the outbox.
--
-- KEYS: bucket, moves, pages of requests.., pages of buyers..
-- ARGV: server, installation, loader
-- Answer: OK, 1 when the bucket was emptied, 0 when this loader did so before.
local found = call('HMGET', KEYS[1], 'epoch', 'loaded', 'loading', 'server')
local loader = tonumber(ARGV[3])
for i = 1, 3 do
  if found[i] and sub(found[i], 1, 8) ~= ARGV[2] then return {FOREIGN} end
end
-- A step of a loader that comes late must not empty what others have loaded or sold from since.
local loaded, loading = found[2] and tagged(found[2]), found[3] and tagged(found[3])
if found[2] and not loaded then return {CORRUPT, 'loaded'} end
if found[3] and not loading then return {CORRUPT, 'loading'} end
if loaded and loaded >= loader or loading and loading > loader then return {OLD_LOADER} end
if loading == loader then
  if found[4] ~= ARGV[1] then return {FENCED} end
  return {OK, 0}
end

for i = 2, #KEYS do call('HLEN', KEYS[i]) end
call('DEL', KEYS[1])
call('HSET', KEYS[1], 'loading', ARGV[2] .. '.' .. ARGV[3], 'server', ARGV[1])
for i = 2, #KEYS do call('DEL', KEYS[i]) end
return {OK, 1}

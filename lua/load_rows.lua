#!lua
-- Writes rows of requests and buyers to the bucket that is being loaded.
--
-- KEYS: bucket, pages..
-- ARGV: server, installation, loader, counts, then id and value of each row, sorted by page
-- Answer: OK.
local server, installation, loader, counts = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local bad, is_open = check_loader(server, installation, loader)
if bad then return bad end
-- A late step must not overwrite sales since the opening.
if is_open then return {OLD_LOADER} end
local at, size = 4, (#ARGV - 4) / 2
if size > ITEMS_MAX then return {TOO_MANY} end
-- Raises an error before the first write if a key has another type.
for page = 1, #counts do call('HLEN', KEYS[1 + page]) end
for page = 1, #counts do
  local last = at + 2 * byte(counts, page)
  call('HSET', KEYS[1 + page], unpack(ARGV, at + 1, last))
  at = last
end
return {OK}

#!lua
-- Enters rows of requests and buyers into the bucket that is being loaded.
--
-- KEYS: bucket, pages..
-- ARGV: server, installation, loader, counts, then id and value of each row, sorted by page
-- Answer: OK.
local bad, is_open = loading(ARGV[1], ARGV[2], ARGV[3])
if bad then return bad end
-- A step that comes late must not undo what was sold since.
if is_open then return {OLD_LOADER} end
local counts, at, size = ARGV[4], 4, (#ARGV - 4) / 2
if size > ITEMS_MAX then return {TOO_MANY} end
for page = 1, #counts do call('HLEN', KEYS[1 + page]) end
for page = 1, #counts do
  local last = at + 2 * byte(counts, page)
  call('HSET', KEYS[1 + page], unpack(ARGV, at + 1, last))
  at = last
end
return {OK}

#!lua
-- Writes rows of requests and buyers to the bucket that is being loaded. The intents of requests
-- that the ledger has decided are no longer unsettled.
--
-- KEYS: bucket, unsettled, pages..
-- ARGV: server, installation, loader, counts, then id and value of each row, sorted by page
-- Answer: OK.
local unsettled = KEYS[2]
local server, installation, loader, counts = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local bad, is_open = check_loader(server, installation, loader)
if bad then return bad end
-- A late step must not overwrite sales since the opening.
if is_open then return {OLD_LOADER} end
local at, size = 4, (#ARGV - 4) / 2
if size > ITEMS_MAX then return {TOO_MANY} end
-- Raises an error before the first write if a key has another type.
local has_unsettled = call('HLEN', unsettled) > 0
for page = 1, #counts do call('HLEN', KEYS[2 + page]) end
for page = 1, #counts do
  local last = at + 2 * byte(counts, page)
  call('HSET', KEYS[2 + page], unpack(ARGV, at + 1, last))
  for row = at + 1, has_unsettled and last or 0, 2 do
    local record = ARGV[row + 1]
    if is_record(record) and sub(record, STATE_AT, STATE_AT) ~= 'Q' then
      call('HDEL', unsettled, ARGV[row])
    end
  end
  at = last
end
return {OK}

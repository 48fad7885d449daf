#!lua flags=no-writes
-- The requests on some pages that the ledger has not answered. Also those of a bucket that is not
-- believed any more, or that a loader holds: what it has accepted must still come to the ledger.
--
-- KEYS: bucket, pages of requests..
-- ARGV: server, installation
-- Answer: OK, epoch, then request and record in turn.
local epoch = call('HGET', KEYS[1], 'epoch')
if not epoch then return {NOT_READY} end
if sub(epoch, 1, 8) ~= ARGV[2] then return {FOREIGN} end
local opened = tagged(epoch)
if not opened then return {CORRUPT, 'epoch'} end
local answer, n = {OK, opened}, 2
for page = 2, #KEYS do
  local rows = call('HGETALL', KEYS[page])
  for i = 1, #rows, 2 do
    if sub(rows[i + 1], STAGE_AT, STAGE_AT) == 'Q' then
      answer[n + 1], answer[n + 2] = rows[i], rows[i + 1]
      n = n + 2
    end
  end
end
return answer

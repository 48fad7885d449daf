#!lua flags=no-writes
-- Reads the requests on some pages that have no ledger decision, also of a bucket that is fenced or
-- that a loader holds: the ledger must still decide its accepted requests.
--
-- KEYS: bucket, pages of requests..
-- ARGV: server, installation
-- Answer: OK, then request and record in turn.
local bucket, installation = KEYS[1], ARGV[2]
local epoch = call('HGET', bucket, 'epoch')
if not epoch then return {NOT_READY} end
if sub(epoch, 1, 8) ~= installation then return {FOREIGN} end
local answer, n = {OK}, 1
for page = 2, #KEYS do
  local rows = call('HGETALL', KEYS[page])
  for i = 1, #rows, 2 do
    if sub(rows[i + 1], STATE_AT, STATE_AT) == 'Q' then
      answer[n + 1], answer[n + 2] = rows[i], rows[i + 1]
      n = n + 2
    end
  end
end
return answer

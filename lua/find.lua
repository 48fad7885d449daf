#!lua flags=no-writes
-- Reads the records of requests. A bucket that is not loaded answers NOT_READY: it cannot say that
-- a request was never accepted.
--
-- KEYS: bucket, pages of requests..
-- ARGV: server, installation, counts of requests, requests..
-- Answer: OK, record or nil for each request.
local server, installation, counts, size = ARGV[1], ARGV[2], ARGV[3], #ARGV - 3
local bad = read_bucket(true, server, installation)
if bad then return bad end
if size > ITEMS_MAX then return {TOO_MANY} end
local answer, records = {OK}, read_column(1, counts, 3)
for i = 1, size do answer[1 + i] = records[i] end
return answer

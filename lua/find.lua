#!lua flags=no-writes
-- Reads the records of requests, or the units of buyers, from their pages. A bucket that is not
-- loaded answers NOT_READY: it cannot say that a request was never accepted.
--
-- KEYS: bucket, pages..
-- ARGV: server, installation, counts of the pages, requests or buyers..
-- Answer: OK, value or nil for each of them.
local server, installation, counts, size = ARGV[1], ARGV[2], ARGV[3], #ARGV - 3
local bad = read_bucket(true, server, installation)
if bad then return bad end
if size > ITEMS_MAX then return {TOO_MANY} end
local answer, records = {OK}, read_column(1, counts, 3)
for i = 1, size do answer[1 + i] = records[i] end
return answer

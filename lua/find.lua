#!lua flags=no-writes
-- The records of requests. A bucket that has none answers so: "never heard of it" would be a lie.
--
-- KEYS: bucket, pages of requests..
-- ARGV: server, installation, counts of requests, requests..
-- Answer: OK, record or nothing for each request.
local server, installation, counts, size = ARGV[1], ARGV[2], ARGV[3], #ARGV - 3
local bad = bucket(true, server, installation)
if bad then return bad end
if size > ITEMS_MAX then return {TOO_MANY} end
local answer, records = {OK}, read(1, counts, 3)
for i = 1, size do answer[1 + i] = records[i] end
return answer

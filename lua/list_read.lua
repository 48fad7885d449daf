#!lua flags=no-writes
-- Elements of one of the outbox's lists.
--
-- KEYS: bucket, list
-- ARGV: installation, first, last
-- Answer: OK, one element for each place.
local bad = foreign(ARGV[1])
if bad then return bad end
local found = call('LRANGE', KEYS[2], ARGV[2], ARGV[3])
table.insert(found, 1, OK)
return found

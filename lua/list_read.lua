#!lua flags=no-writes
-- Reads elements of one of the outbox's lists.
--
-- KEYS: bucket, list
-- ARGV: server, installation, first, last
-- Answer: OK, the elements.
local list, installation, first, last = KEYS[2], ARGV[2], ARGV[3], ARGV[4]
local bad = check_installation(installation)
if bad then return bad end
return {OK, call('LRANGE', list, first, last)}

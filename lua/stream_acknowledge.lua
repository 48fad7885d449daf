#!lua flags=allow-oom
-- Removes published entries, also those that another worker holds.
--
-- KEYS: bucket, outbox
-- ARGV: server, installation, ids..
-- Answer: OK, number of removed entries.
local outbox, installation, ids_at = KEYS[2], ARGV[2], 2
local bad = check_installation(installation)
if bad then return bad end
if #ARGV - ids_at > CLAIM_MAX then return {TOO_MANY} end
call('XACK', outbox, GROUP, unpack(ARGV, ids_at + 1))
return {OK, call('XDEL', outbox, unpack(ARGV, ids_at + 1))}

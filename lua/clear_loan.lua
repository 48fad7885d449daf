#!lua flags=allow-oom
-- Forgets a loan that the borrower has.
--
-- KEYS: bucket, moves
-- ARGV: server, installation, borrower, number of the loan
-- Answer: OK, stock, lent, 1 when it was open until now.
local bad, _, _, stock, lent = bucket(ARGV[1], ARGV[2])
if bad then return bad end
local no_field, units_field = 'no:' .. ARGV[3], 'out:' .. ARGV[3]
local moves = call('HMGET', KEYS[2], no_field, units_field)
if not moves[1] and not moves[2] then return {OK, stock, lent, 0} end
local no, open = whole(moves[1]), whole(moves[2])
if not no or not open or open > lent then return {CORRUPT, 'moves'} end
if no ~= tonumber(ARGV[4]) then return {OK, stock, lent, 0} end
call('HDEL', KEYS[2], no_field, units_field)
call('HSET', KEYS[1], 'lent', lent - open)
return {OK, stock, lent - open, 1}

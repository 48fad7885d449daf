#!lua flags=allow-oom
-- Forgets a loan that the borrower has.
--
-- KEYS: bucket, moves
-- ARGV: server, installation, borrower, number of the loan
-- Answer: OK, stock, lent, changes, 1 when it was open until now.
local server, installation, borrower, loan = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local bad, _, _, stock, lent, changes = bucket(false, server, installation,
  'stock', 'lent', 'changes')
if bad then return bad end
local no_field, units_field = 'no:' .. borrower, 'out:' .. borrower
local moves = call('HMGET', KEYS[2], no_field, units_field)
if not moves[1] and not moves[2] then return {OK, stock, lent, changes, 0} end
local no, open = whole(moves[1]), whole(moves[2])
if not no or not open or open > lent then return {CORRUPT, 'moves'} end
if no ~= loan then return {OK, stock, lent, changes, 0} end
call('HDEL', KEYS[2], no_field, units_field)
call('HSET', KEYS[1], 'lent', lent - open)
return {OK, stock, lent - open, changes, 1}

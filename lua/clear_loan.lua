#!lua flags=allow-oom
-- Clears a loan that the borrower has added, or one that it never will: its units return.
--
-- KEYS: bucket, moves
-- ARGV: server, installation, borrower, number of the loan, 1 if its units return
-- Answer: OK, stock, lent, changes, 1 if this call cleared it.
local bucket, moves = KEYS[1], KEYS[2]
local server, installation, borrower, loan = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local is_returned = ARGV[5] == '1'
local bad, _, _, stock, lent, changes = read_bucket(false, server, installation,
  'stock', 'lent', 'changes')
if bad then return bad end
local no_field, units_field = 'no:' .. borrower, 'out:' .. borrower
local found = call('HMGET', moves, no_field, units_field)
if not found[1] and not found[2] then return {OK, stock, lent, changes, 0} end
local no, open = to_number(found[1]), to_number(found[2])
if not no or not open or open > lent then return {CORRUPT, 'moves'} end
if no ~= loan then return {OK, stock, lent, changes, 0} end
if is_returned then stock = stock + open end
call('HDEL', moves, no_field, units_field)
call('HSET', bucket, 'lent', lent - open, 'stock', stock)
return {OK, stock, lent - open, changes, 1}

#!lua
-- Moves stock out: takes units for another bucket and keeps them on record until it has them. While
-- a loan to that bucket is open, it is the answer again.
--
-- KEYS: bucket, moves
-- ARGV: server, installation, borrower, units wanted
-- Answer: OK, stock, lent, changes, number of the loan, its units; 0 and 0 where nothing is free.
local server, installation, borrower, wanted = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local bad, _, loaded, stock, lent, changes = bucket(false, server, installation,
  'stock', 'lent', 'changes')
if bad then return bad end
local floor = floor_of(loaded, installation)
if not floor then return {CORRUPT, 'loaded'} end
local no_field, units_field = 'no:' .. borrower, 'out:' .. borrower
local moves = call('HMGET', KEYS[2], 'next', no_field, units_field)
if moves[2] or moves[3] then
  local no, open = whole(moves[2]), whole(moves[3])
  if not no or not open or open > lent then return {CORRUPT, 'moves'} end
  return {OK, stock, lent, changes, no, open}
end
if moves[1] and not whole(moves[1]) then return {CORRUPT, 'moves'} end

-- Half of what is free, so that a dry bucket does not come back at once.
local taken = math.min(stock, math.max(wanted, math.floor(stock / 2)))
if taken == 0 then return {OK, stock, lent, changes, 0, 0} end
-- Numbers grow from load to load, also when Redis has lost the ones before.
local no = (moves[1] and whole(moves[1]) or floor) + 1
if no >= floor + NUMBERS_PER_LOAD then return {TOO_MANY} end
call('HSET', KEYS[1], 'stock', stock - taken, 'lent', lent + taken)
call('HSET', KEYS[2], 'next', no, no_field, no, units_field, taken)
return {OK, stock - taken, lent + taken, changes, no, taken}

#!lua
-- Moves stock out: takes units for another bucket and keeps them on record until it has them. While
-- a loan to that bucket is open, it is the answer again.
--
-- KEYS: bucket, moves
-- ARGV: server, installation, borrower, units wanted
-- Answer: OK, stock, lent, number of the loan, its units; 0 and 0 where nothing is free.
local bad, _, _, stock, lent, _, _, floor = bucket(ARGV[1], ARGV[2])
if bad then return bad end
local no_field, units_field = 'no:' .. ARGV[3], 'out:' .. ARGV[3]
local moves = call('HMGET', KEYS[2], 'next', no_field, units_field)
if moves[2] or moves[3] then
  local no, open = whole(moves[2]), whole(moves[3])
  if not no or not open or open > lent then return {CORRUPT, 'moves'} end
  return {OK, stock, lent, no, open}
end
if moves[1] and not whole(moves[1]) then return {CORRUPT, 'moves'} end

-- Half of what is free, so that a dry bucket does not come back at once.
local taken = math.min(stock, math.max(tonumber(ARGV[4]), math.floor(stock / 2)))
if taken == 0 then return {OK, stock, lent, 0, 0} end
-- Numbers grow from load to load, also when Redis has lost the ones before.
local no = (moves[1] and whole(moves[1]) or floor) + 1
if no >= floor + LOANS_PER_LOAD then return {TOO_MANY} end
call('HSET', KEYS[1], 'stock', stock - taken, 'lent', lent + taken)
call('HSET', KEYS[2], 'next', no, no_field, no, units_field, taken)
return {OK, stock - taken, lent + taken, no, taken}

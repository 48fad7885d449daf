#!lua
-- Moves stock out: takes units for another bucket and records them as a loan until the borrower has
-- added them. While a loan to that bucket is open, the same loan is returned again; of a withdrawal
-- without its units, because another process is about to record it.
--
-- KEYS: bucket, moves
-- ARGV: server, installation, borrower, units wanted, 1 if the units leave the stock
-- Answer: OK, stock, lent, changes, number of the loan, its units; 0 and 0 if no unit is free.
local bucket, moves = KEYS[1], KEYS[2]
local server, installation, borrower, wanted = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local is_withdrawal = ARGV[5] == '1'
local bad, _, loaded, stock, lent, changes = read_bucket(false, server, installation,
  'stock', 'lent', 'changes')
if bad then return bad end
local floor = floor_of(loaded, installation)
if not floor then return {CORRUPT, 'loaded'} end
local no_field, units_field = 'no:' .. borrower, 'out:' .. borrower
local found = call('HMGET', moves, 'next', no_field, units_field)
if found[2] or found[3] then
  local no, open = to_number(found[2]), to_number(found[3])
  if not no or not open or open > lent then return {CORRUPT, 'moves'} end
  return {OK, stock, lent, changes, no, is_withdrawal and 0 or open}
end
local last = found[1] and to_number(found[1])
if found[1] and not last then return {CORRUPT, 'moves'} end

-- At least half of the free units, so that a starved bucket does not need another loan at once.
local least = is_withdrawal and 0 or math.floor(stock / 2)
local taken = math.min(stock, math.max(wanted, least))
if taken == 0 then return {OK, stock, lent, changes, 0, 0} end
-- Numbers grow from load to load, also if Redis has lost the previous ones.
local no = (last or floor) + 1
if no >= floor + NUMBERS_PER_LOAD then return {TOO_MANY} end
call('HSET', bucket, 'stock', stock - taken, 'lent', lent + taken)
call('HSET', moves, 'next', no, no_field, no, units_field, taken)
return {OK, stock - taken, lent + taken, changes, no, taken}

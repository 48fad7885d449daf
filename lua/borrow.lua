#!lua flags=allow-oom
-- Moves stock in: adds the units of a loan, once. A loan that is not newer than the last one from
-- that bucket has arrived already, or belongs to a time before the stock was dealt out anew.
--
-- KEYS: bucket, moves
-- ARGV: server, installation, lender, number of the loan, its units
-- Answer: OK, stock, lent, changes, units added.
local server, installation, lender = ARGV[1], ARGV[2], ARGV[3]
local no, added, field = tonumber(ARGV[4]), tonumber(ARGV[5]), 'in:' .. lender
local bad, _, loaded, stock, lent, changes = bucket(false, server, installation,
  'stock', 'lent', 'changes')
if bad then return bad end
local floor = floor_of(loaded, installation)
if not floor then return {CORRUPT, 'loaded'} end
local last = call('HGET', KEYS[2], field)
if last and not whole(last) then return {CORRUPT, 'moves'} end
-- The lender was loaded anew and this bucket was not yet: its stock is about to be replaced.
if no >= floor + NUMBERS_PER_LOAD then return {NOT_READY} end
if no <= math.max(floor, last and whole(last) or 0) then return {OK, stock, lent, changes, 0} end
call('HSET', KEYS[2], field, no)
call('HSET', KEYS[1], 'stock', stock + added)
return {OK, stock + added, lent, changes, added}

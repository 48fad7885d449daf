#!lua flags=allow-oom
-- Moves stock in: adds the units of a loan, once. A loan that is not newer than the last one from
-- that bucket was added before, or belongs to an earlier load.
--
-- KEYS: bucket, moves
-- ARGV: server, installation, lender, number of the loan, its units
-- Answer: OK, stock, lent, changes, units added.
local bucket, moves = KEYS[1], KEYS[2]
local server, installation, lender = ARGV[1], ARGV[2], ARGV[3]
local no, added, field = tonumber(ARGV[4]), tonumber(ARGV[5]), 'in:' .. lender
local bad, _, loaded, stock, lent, changes = read_bucket(false, server, installation,
  'stock', 'lent', 'changes')
if bad then return bad end
local floor = floor_of(loaded, installation)
if not floor then return {CORRUPT, 'loaded'} end
local value = call('HGET', moves, field)
local last = value and to_number(value)
if value and not last then return {CORRUPT, 'moves'} end
-- The lender was loaded again and this bucket not yet: its stock is about to be replaced.
if no >= floor + NUMBERS_PER_LOAD then return {NOT_READY} end
if no <= math.max(floor, last or 0) then return {OK, stock, lent, changes, 0} end
call('HSET', moves, field, no)
call('HSET', bucket, 'stock', stock + added)
return {OK, stock + added, lent, changes, added}

#!lua flags=allow-oom
-- Removes entries that ended, by identity: from the worker's private list, or from the front of the
-- outbox, where reclaimed ones wait. An entry that is in neither belongs to another worker, which
-- publishes it once more.
--
-- KEYS: bucket, outbox, claimed, dead
-- ARGV: installation, ends, identities.., dead letters..
-- `ends` has a byte for each identity: P published, D given up. Each D has a dead letter, which is
-- written only where its entry is removed.
-- Answer: OK, how many entries were removed.
local outbox, claimed, dead = KEYS[2], KEYS[3], KEYS[4]
local installation, ends = ARGV[1], ARGV[2]
local size, identities_at = #ARGV[2], 2
local bad = foreign(installation)
if bad then return bad end
if size > CLAIM_MAX then return {TOO_MANY} end
local held = call('LRANGE', claimed, 0, -1)

-- The usual case: the oldest entries of the private list were published, in their order.
local num_first = 0
while num_first < size and held[num_first + 1]
  and identity(held[num_first + 1]) == ARGV[identities_at + num_first + 1] do
  num_first = num_first + 1
end
if num_first == size and not find(ends, 'D') then
  call('LTRIM', claimed, size, -1)
  return {OK, size}
end

local wanted, found, num_found = {}, {}, 0
for i = 1, size do wanted[ARGV[identities_at + i]] = i end
local function search(list, entries)
  for _, entry in ipairs(entries) do
    local i = wanted[identity(entry)]
    if i and not found[i] then found[i], num_found = {list, entry}, num_found + 1 end
  end
end
search(claimed, held)
if num_found < size then search(outbox, call('LRANGE', outbox, 0, RECLAIMED_MAX - 1)) end
local letters, letter_at = {}, identities_at + size
for i = 1, size do
  if sub(ends, i, i) == 'D' then
    letter_at = letter_at + 1
    if found[i] then letters[#letters + 1] = ARGV[letter_at] end
  end
end
-- A letter whose entry stays is one too many; an entry removed without its letter would be lost.
if #letters > 0 then call('RPUSH', dead, unpack(letters)) end
for _, place in pairs(found) do call('LREM', place[1], 1, place[2]) end
return {OK, num_found}

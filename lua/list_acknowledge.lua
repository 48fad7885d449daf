#!lua flags=allow-oom
-- Removes published and given-up entries by identity: from the worker's private list, or from the
-- front of the outbox, where reclaimed entries wait. An entry in neither belongs to another worker,
-- which publishes it again.
--
-- KEYS: bucket, outbox, claimed, dead
-- ARGV: server, installation, outcomes, identities.., dead letters..
-- `outcomes` has a byte for each identity: P published, D given up. Each D has a dead letter, which
-- is written only if its entry is removed.
-- Answer: OK, number of removed entries, the position of each D that is not removed.
local outbox, claimed, dead = KEYS[2], KEYS[3], KEYS[4]
local installation, outcomes = ARGV[2], ARGV[3]
local size, identities_at = #outcomes, 3
local bad = check_installation(installation)
if bad then return bad end
if size > CLAIM_MAX then return {TOO_MANY} end
local held = call('LRANGE', claimed, 0, -1)

-- The usual case: the oldest entries of the private list were published, in their order.
local num_first = 0
while num_first < size and held[num_first + 1]
  and identity(held[num_first + 1]) == ARGV[identities_at + num_first + 1] do
  num_first = num_first + 1
end
if num_first == size and not find(outcomes, 'D') then
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
local answer, dead_letters, letter_at = {OK, num_found}, {}, identities_at + size
for i = 1, size do
  if sub(outcomes, i, i) == 'D' then
    letter_at = letter_at + 1
    if found[i] then
      dead_letters[#dead_letters + 1] = ARGV[letter_at]
    else
      answer[#answer + 1] = i
    end
  end
end
-- Written first: after a crash a dead letter whose entry stays is a duplicate; an entry that was
-- removed without its dead letter would be lost.
if #dead_letters > 0 then call('RPUSH', dead, unpack(dead_letters)) end
for _, location in pairs(found) do call('LREM', location[1], 1, location[2]) end
return answer

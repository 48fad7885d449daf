#!lua flags=allow-oom
-- Removes published entries by identity: from the worker's private list, or from the front of the
-- outbox, where reclaimed entries wait. An entry in neither belongs to another worker, which
-- publishes it again.
--
-- KEYS: bucket, outbox, claimed
-- ARGV: server, installation, identities..
-- Answer: OK, number of removed entries.
local outbox, claimed, installation = KEYS[2], KEYS[3], ARGV[2]
local size, identities_at = #ARGV - 2, 2
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
if num_first == size then
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
for _, location in pairs(found) do call('LREM', location[1], 1, location[2]) end
return {OK, num_found}

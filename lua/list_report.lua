#!lua flags=allow-oom
-- Removes from a worker's hand what was published or given up, and counts attempts that failed.
--
-- KEYS: bucket, claims, hand, dead
-- ARGV: installation, worker, life, fates, first entry, last entry, dead letters..
-- There is a byte for each entry in hand: P published, K kept, F failed, D dead. Both entries come
-- without their first byte, the attempts. Under one mark a hand only loses entries or grows at its
-- end: if its length and both ends are what the worker knows, so is the rest.
-- Answer: OK.
local bad = foreign(ARGV[1]) or replaced(ARGV[2], ARGV[3], 'go on')
if bad then return bad end
local fates, size, hand = ARGV[4], #ARGV[4], KEYS[3]
local held = call('LLEN', hand)
call('LLEN', KEYS[4])
if size > HAND_MAX then return {TOO_MANY} end
if size == 0 or held ~= size then return {CHANGED} end
local first, last = call('LINDEX', hand, 0), call('LINDEX', hand, -1)
if sub(first, 2) ~= ARGV[5] or sub(last, 2) ~= ARGV[6] then return {CHANGED} end

local _, published = find(fates, '^P*')
if find(fates, '^P*K*$') then
  if published > 0 then call('LTRIM', hand, published, -1) end
  return {OK}
end
local entries, kept = call('LRANGE', hand, 0, -1), {}
for i = 1, size do
  local entry, fate = entries[i], sub(fates, i, i)
  if fate == 'F' then
    local attempts = math.min((byte(entry) or 0) + 1, 255)
    entry = string.char(attempts) .. sub(entry, 2)
  end
  if fate == 'F' or fate == 'K' then kept[#kept + 1] = entry end
end
-- A letter without its entry gone is one too many, an entry gone without its letter would be lost.
if #ARGV > 6 then call('RPUSH', KEYS[4], unpack(ARGV, 7)) end
call('DEL', hand)
if #kept > 0 then call('RPUSH', hand, unpack(kept)) end
return {OK}

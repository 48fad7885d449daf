#!lua flags=allow-oom
-- Removes from the stream what was published or given up, and counts attempts that failed.
--
-- KEYS: bucket, claims, line, dead
-- ARGV: installation, worker, life, fates, ids.., dead letters..
-- There is a byte and an id for each entry in hand: P published, K kept, F failed, D dead.
-- Answer: OK, ids of entries that failed and that somebody else had deleted.
local bad = foreign(ARGV[1]) or replaced(ARGV[2], ARGV[3], 'go on')
if bad then return bad end
local worker, fates, size, line = ARGV[2], ARGV[4], #ARGV[4], KEYS[3]
call('LLEN', KEYS[4])
if size > HAND_MAX then return {TOO_MANY} end
local hand = has_group(line) and pending(line, worker, size + 1) or {}
if size == 0 or #hand ~= size then return {CHANGED} end
local deliveries = {}
for i = 1, size do deliveries[hand[i][1]] = hand[i][4] end
local gone, failed = {}, {}
for i = 1, size do
  local id, fate = ARGV[4 + i], sub(fates, i, i)
  if not deliveries[id] then return {CHANGED} end
  if fate == 'P' or fate == 'D' then gone[#gone + 1] = id end
  if fate == 'F' then failed[id] = deliveries[id] + 1 end
  -- No entry is there twice.
  deliveries[id] = nil
end

-- A letter without its entry gone is one too many, an entry gone without its letter would be lost.
if #ARGV > 4 + size then call('RPUSH', KEYS[4], unpack(ARGV, 5 + size)) end
local vanished = {}
for id, count in pairs(failed) do
  local there = call('XCLAIM', line, GROUP, worker, 0, id, 'RETRYCOUNT', count, 'JUSTID')
  if #there == 0 then vanished[#vanished + 1] = id end
end
if #gone > 0 then
  call('XACK', line, GROUP, unpack(gone))
  call('XDEL', line, unpack(gone))
end
return {OK, vanished}

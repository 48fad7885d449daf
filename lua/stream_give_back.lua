#!lua flags=allow-oom
-- Gives a worker's whole hand to nobody, from whom it is claimed before all else, and forgets the
-- worker.
--
-- KEYS: bucket, claims, line
-- ARGV: installation, worker
-- Answer: OK, ids of entries that somebody else had deleted, how many entries went back.
local bad = foreign(ARGV[1])
if bad then return bad end
local worker, line = ARGV[2], KEYS[3]
call('HLEN', KEYS[2])
local vanished, moved = {}, 0
if has_group(line) then
  local hand
  repeat
    hand = pending(line, worker, HAND_MAX)
    local lost = hand_over(line, ORPHANS, hand)
    for i = 1, #lost do vanished[#vanished + 1] = lost[i] end
    moved = moved + #hand - #lost
  until #hand == 0
  -- It holds nothing any more: what a consumer holds would be deleted with it.
  call('XGROUP', 'DELCONSUMER', line, GROUP, worker)
end
call('HDEL', KEYS[2], worker)
return {OK, vanished, moved}

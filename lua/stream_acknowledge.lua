#!lua flags=allow-oom
-- Removes published and given-up entries, also those that another worker holds.
--
-- KEYS: bucket, outbox, dead
-- ARGV: server, installation, outcomes, ids.., dead letters..
-- `outcomes` has a byte for each id: P published, D given up. Each D has a dead letter, which is
-- written only if its entry is removed.
-- Answer: OK, number of removed entries, the position of each D that is not removed.
local outbox, dead, installation, outcomes = KEYS[2], KEYS[3], ARGV[2], ARGV[3]
local size, ids_at = #outcomes, 3
local bad = check_installation(installation)
if bad then return bad end
if size > CLAIM_MAX then return {TOO_MANY} end
local answer, dead_letters, letter_at = {OK, 0}, {}, ids_at + size
if find(outcomes, 'D') then
  for i = 1, size do
    local id = ARGV[ids_at + i]
    if sub(outcomes, i, i) == 'D' then
      letter_at = letter_at + 1
      if #call('XRANGE', outbox, id, id) > 0 then
        dead_letters[#dead_letters + 1] = ARGV[letter_at]
      else
        answer[#answer + 1] = i
      end
    end
  end
end
-- Written first: after a crash a dead letter whose entry stays is a duplicate; an entry that was
-- removed without its dead letter would be lost.
if #dead_letters > 0 then call('RPUSH', dead, unpack(dead_letters)) end
call('XACK', outbox, GROUP, unpack(ARGV, ids_at + 1, ids_at + size))
answer[2] = call('XDEL', outbox, unpack(ARGV, ids_at + 1, ids_at + size))
return answer

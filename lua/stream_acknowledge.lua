#!lua flags=allow-oom
-- Removes entries that ended, whoever holds them.
--
-- KEYS: bucket, outbox, dead
-- ARGV: installation, ends, ids.., dead letters..
-- `ends` has a byte for each id: P published, D given up. Each D has a dead letter, which is
-- written only where its entry is removed.
-- Answer: OK, how many entries were removed.
local outbox, dead, installation, ends = KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local size, ids_at = #ARGV[2], 2
local bad = foreign(installation)
if bad then return bad end
if size > CLAIM_MAX then return {TOO_MANY} end
local letters, letter_at = {}, ids_at + size
if find(ends, 'D') then
  for i = 1, size do
    local id = ARGV[ids_at + i]
    if sub(ends, i, i) == 'D' then
      letter_at = letter_at + 1
      if #call('XRANGE', outbox, id, id) > 0 then letters[#letters + 1] = ARGV[letter_at] end
    end
  end
end
-- A letter whose entry stays is one too many; an entry removed without its letter would be lost.
if #letters > 0 then call('RPUSH', dead, unpack(letters)) end
call('XACK', outbox, GROUP, unpack(ARGV, ids_at + 1, ids_at + size))
return {OK, call('XDEL', outbox, unpack(ARGV, ids_at + 1, ids_at + size))}

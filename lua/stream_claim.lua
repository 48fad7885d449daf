#!lua flags=allow-oom
-- Assigns entries to a worker: reclaimed ones first, then the oldest of the stream.
--
-- KEYS: bucket, outbox
-- ARGV: server, installation, worker, most entries to assign
-- Answer: OK, for each entry: id, message.
local outbox, installation, worker = KEYS[2], ARGV[2], ARGV[3]
local max, answer = math.min(tonumber(ARGV[4]), CLAIM_MAX), {OK}
local bad = check_installation(installation)
if bad then return bad end
-- The group must not bring back the outbox of a purged sale.
if call('EXISTS', outbox) == 0 then return answer end
local reclaimed = redis.pcall('XPENDING', outbox, GROUP, '-', '+', max, ORPHANS)
if reclaimed.err then
  if not find(reclaimed.err, 'NOGROUP') then return reclaimed end
  call('XGROUP', 'CREATE', outbox, GROUP, '0')
  reclaimed = {}
end
hand_over(outbox, worker, reclaimed, answer)
if #reclaimed < max then
  local remaining = max - #reclaimed
  local delivered = call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', remaining, 'STREAMS',
    outbox, '>')
  append_entries(delivered and delivered[1][2] or {}, answer)
end
return answer

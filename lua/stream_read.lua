#!lua flags=no-writes
-- Reads entries of the stream, waiting and claimed.
--
-- KEYS: bucket, outbox
-- ARGV: server, installation, start, most entries
-- Answer: OK, for each entry: id, holder ('' while it waits), message.
local outbox, installation, start, max = KEYS[2], ARGV[2], ARGV[3], ARGV[4]
local bad = check_installation(installation)
if bad then return bad end
local answer = {OK}
local is_grouped = last_delivered(outbox)
for _, entry in ipairs(call('XRANGE', outbox, start, '+', 'COUNT', max)) do
  local id = entry[1]
  local held = is_grouped and call('XPENDING', outbox, GROUP, id, id, 1)[1]
  local at, holder = #answer, held and held[2] ~= ORPHANS and held[2] or ''
  answer[at + 1], answer[at + 2], answer[at + 3] = id, holder, message_of(entry[2])
end
return answer

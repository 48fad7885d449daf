#!lua flags=no-writes
-- Entries of the stream, whoever holds them.
--
-- KEYS: bucket, outbox
-- ARGV: installation, where to begin, how many
-- Answer: OK, for each entry: id, holder ('' where it waits), message.
local bad = foreign(ARGV[1])
if bad then return bad end
local outbox, answer = KEYS[2], {OK}
local is_grouped = has_group(outbox)
for _, entry in ipairs(call('XRANGE', outbox, ARGV[2], '+', 'COUNT', ARGV[3])) do
  local id = entry[1]
  local held = is_grouped and call('XPENDING', outbox, GROUP, id, id, 1)[1]
  local at, holder = #answer, held and held[2] ~= ORPHANS and held[2] or ''
  answer[at + 1], answer[at + 2], answer[at + 3] = id, holder, body(entry[2])
end
return answer

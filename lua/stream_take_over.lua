#!lua flags=allow-oom
-- Gives to a worker what its predecessors held.
--
-- KEYS: bucket, outbox
-- ARGV: installation, worker, predecessors..
-- Answer: OK, for each entry that the worker holds, also those that it had before: id, message.
local outbox, installation, worker, answer = KEYS[2], ARGV[1], ARGV[2], {OK}
local bad = foreign(installation)
if bad then return bad end
if not has_group(outbox) then return answer end
for i = 3, #ARGV do move_all(outbox, ARGV[i], worker) end
hand_over(outbox, worker, pending(outbox, worker, CLAIM_MAX), answer)
return answer

#!lua flags=allow-oom
-- Assigns the entries of a worker's predecessors to the worker.
--
-- KEYS: bucket, outbox
-- ARGV: server, installation, worker, predecessors..
-- Answer: OK, for each entry that the worker holds, also those from before: id, message.
local outbox, installation, worker, answer = KEYS[2], ARGV[2], ARGV[3], {OK}
local bad = check_installation(installation)
if bad then return bad end
if not last_delivered(outbox) then return answer end
for i = 4, #ARGV do move_all(outbox, ARGV[i], worker) end
hand_over(outbox, worker, pending(outbox, worker, CLAIM_MAX), answer)
return answer

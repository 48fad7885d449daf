// The table of button.js: [what, policy, events, the state afterwards, effects of the last event].
// A state names only the members that matter. `mod` is the module.
const open = { type: "sale", phase: "open", soldOut: false };
const paused = { ...open, phase: "paused" };
const ended = { ...open, phase: "ended" };
const before = { ...open, phase: "before" };
const soldOut = { ...open, soldOut: true };
const click = { type: "click", quantity: 2, now: 1000 };
const id = { type: "request-id", request_id: "r1", now: 1000 };
const answer = (status, body, more) => ({
  type: "answer", id: "r1", status, body, now: 1000, ...more,
});
const problem = (status, code, more) => answer(status, { code, ...more });
const status = (code, body, now = 1000) => ({ type: "status", id: "r1", status: code, body, now });
const order = { request_id: "r1", state: "pending_payment" };
const overdue = { ...order, state: "timed_out" };
const success = { state: "success", order };
const queued = { state: "queued", poll_after_ms: 500 };
const busy = answer(503, { code: "busy" }, { retryAfterMs: 1000 });
const retry = { type: "retry", now: 2000 };
const noId = { type: "id-refused", status: 503, retryAfterMs: 1000 };
const lost = { type: "lost", id: "r1" };
const settle = { type: "settle" };
const [one, many, quota] = ["one_per_buyer", "unlimited", "quota"];
const sent = [open, click, id];
const single = [open, { ...click, quantity: 1 }, id];
const record = { request_id: "r1", quantity: 2, path_id: null, sent_at: 1000, queued_at: null };
const accepted = { ...record, queued_at: 1000 };
const buy = [["save", record], ["buy", record]];
const end = ["forget", "refresh"];

const rows = [
  // The window
  ["closed before the start", many, [before], { name: "closed", note: "before" }, []],
  ["a click before the start", many, [before, click], { name: "closed" }, []],
  ["open", many, [before, open], { name: "idle" }, []],
  ["paused", many, [open, paused], { name: "closed", note: "paused" }, []],
  ["over", many, [open, ended], { name: "closed", note: "ended" }, []],
  ["sold out", many, [open, soldOut], { name: "failed", note: "sold-out" }, []],
  ["a click on sold out", many, [soldOut, click], { name: "failed" }, []],

  // A click
  ["an id is asked for first", many, [open, click], { name: "queued" }, ["get-id"]],
  ["the record is written before the request", many, sent, { name: "queued", record }, buy],
  ["a known id is used", one, [open, { type: "mine", owned: 0, request_id: "r1" }, click],
    { name: "queued", record }, buy],
  ["an id that was prepared is used", many,
    [before, { type: "prepared-id", request_id: "r1" }, open, click],
    { name: "queued", record }, buy],
  ["a double click", many, [open, click, click], { name: "queued" }, []],
  ["a third click after the id", many, [...sent, click], { name: "queued" }, []],
  ["no id: nothing was sent", many, [open, click, { type: "id-refused", status: 400 }],
    { name: "idle", note: "refused", record: null }, []],
  ["no id yet: the shop is busy", many, [open, click, noId],
    { name: "queued", note: "busy", tries: 1 }, ["after"]],
  ["the id is asked for again", many, [open, click, noId, retry], { name: "queued" }, ["get-id"]],
  ["no id in six tries", many,
    [open, click, noId, retry, noId, retry, noId, retry, noId, retry, noId, retry, noId],
    { name: "unknown", note: "still-busy" }, []],
  ["the orange button asks for an id", many,
    [open, click, noId, retry, noId, retry, noId, retry, noId, retry, noId, retry, noId, click],
    { name: "queued" }, ["get-id"]],
  ["no id: the shop is away", many, [open, click, { type: "id-refused", status: 0 }],
    { name: "idle", note: "unsent" }, []],
  ["the shop answers again", many,
    [open, click, { type: "id-refused", status: 0 }, { ...open, now: 9000 }],
    { name: "idle", note: null }, []],
  ["an answer that was on its way", many,
    [open, click, { type: "id-refused", status: 0 }, { ...open, now: 2000 }],
    { name: "idle", note: "unsent" }, []],
  ["the connection is back", many,
    [open, click, { type: "id-refused", status: 0 }, { type: "wake" }],
    { name: "idle", note: null }, []],
  ["no id without credentials", many, [open, click, { type: "id-refused", status: 401 }],
    { name: "idle", note: "stranger" }, ["sign-in"]],

  // The answers
  ["success", many, [...sent, answer(200, success)],
    { name: "success", record: null, order }, [...end, "after"]],
  ["again after a success", many, [...sent, answer(200, success), settle],
    { name: "idle", again: true, record: null }, []],
  ["a new id for the next purchase", many, [...sent, answer(200, success), settle, click],
    { name: "queued" }, ["get-id"]],
  ["one per buyer stays ordered", one, [...sent, answer(200, success)],
    { name: "success" }, end],
  ["an order that ended before: it may be bought again", one,
    [...sent, answer(200, { ...success, order: overdue, again: "r2" })],
    { name: "idle", note: "order-ended", record: null, nextId: "r2" }, end],
  ["an order that ended before, for good", one,
    [...sent, answer(200, { ...success, order: overdue })],
    { name: "failed", note: "order-ended", record: null }, end],
  ["ended while the page slept", quota,
    [...sent, answer(202, queued), status(200, { ...success, order: overdue,
      quota: { owned: 0, limit: 5 } })],
    { name: "idle", note: "order-ended", owned: 0 }, end],
  ["quota with rest", quota,
    [...sent, answer(200, { ...success, quota: { owned: 2, limit: 5 } }), settle],
    { name: "idle", owned: 2, limit: 5 }, []],
  ["quota without rest", quota,
    [...sent, answer(200, { ...success, quota: { owned: 5, limit: 5 } }), settle],
    { name: "limit" }, []],
  ["accepted", many, [...sent, answer(202, queued)],
    { name: "queued", note: "accepted", record: accepted }, [["save", accepted], "watch"]],
  ["202 unknown asks at once", many, [...sent, answer(202, { state: "unknown" })],
    { name: "queued", record }, ["poll"]],
  ["no answer asks at once", many, [...sent, lost],
    { name: "queued", record }, ["poll"]],
  ["500 with a problem", many, [...sent, problem(500, "internal")],
    { name: "queued", record }, ["poll"]],
  ["busy", many, [...sent, busy], { name: "queued", note: "busy", record, tries: 1 }, ["after"]],
  ["too fast", many, [...sent, problem(429, "rate-limited")],
    { name: "queued", note: "busy" }, ["after"]],
  ["the retry is the same request", many, [...sent, busy, retry],
    { name: "queued", record: { ...record, sent_at: 2000 } }, ["save", "buy"]],
  ["busy five times", many, [...sent, busy, retry, busy, retry, busy, retry, busy, retry, busy],
    { name: "queued", tries: 5 }, ["after"]],
  ["busy six times", many,
    [...sent, busy, retry, busy, retry, busy, retry, busy, retry, busy, retry, busy],
    { name: "unknown", note: "still-busy", tries: 0 }, []],
  ["the orange button sends the same request", many,
    [...sent, busy, retry, busy, retry, busy, retry, busy, retry, busy, retry, busy, click],
    { name: "queued", record }, buy],
  ["sold out at the gate", many, [...single, problem(409, "sold-out")],
    { name: "failed", note: "sold-out", record: null }, end],
  ["an older count of the stock", many,
    [...single, problem(409, "sold-out"), { ...open, now: 2000 }], { name: "failed" }, []],
  ["a unit came back: the reason stays readable", many,
    [...single, problem(409, "sold-out"), { ...open, now: 9000 }],
    { name: "idle", note: "sold-out" }, []],
  ["what the buyer owns does not undo a refusal", quota,
    [...single, problem(409, "sold-out"), { type: "mine", owned: 0, limit: 5, now: 1100 }],
    { name: "failed", note: "sold-out" }, []],
  ["fewer units are left than wanted", many, [...sent, problem(409, "sold-out")],
    { name: "idle", note: "sold-out", isShort: true, record: null, nextId: null }, end],
  ["fewer are left: the reason stays readable", quota,
    [...sent, problem(409, "sold-out"), { ...open, now: 9000 },
      { type: "mine", owned: 0, limit: 5, now: 9000 }],
    { name: "idle", note: "sold-out", isShort: true }, []],
  ["fewer were left, and now none", many,
    [...sent, problem(409, "sold-out"), { ...soldOut, now: 2000 }],
    { name: "failed", note: "sold-out", isShort: true }, []],
  ["sold out after a success: nothing was refused", many,
    [...single, problem(409, "sold-out"), { ...open, now: 9000 }, click,
      { ...id, request_id: "r1" }, answer(200, success), settle, { ...soldOut, now: 20000 }],
    { name: "failed", note: "sold-out", isShort: false }, []],
  ["ended", many, [...sent, problem(410, "ended")],
    { name: "failed", note: "ended", record: null }, end],
  ["ended, as the sale says, too", many, [...sent, problem(410, "ended"), ended],
    { name: "failed", note: "ended" }, []],
  ["open again after it had ended", many, [...sent, problem(410, "ended"), ended, open],
    { name: "idle" }, []],
  ["barred", one, [...sent, problem(403, "barred")], { name: "failed", record: null }, end],
  ["quota exceeded", quota, [...sent, problem(409, "quota-exceeded", { owned: 5, limit: 5 })],
    { name: "limit", owned: 5, limit: 5, record: null }, end],
  ["quota exceeded by this quantity", quota,
    [...sent, problem(409, "quota-exceeded", { owned: 4, limit: 5 })],
    { name: "idle", note: "quota-exceeded", record: null }, end],
  ["already purchased", one, [...sent, problem(409, "already-purchased", { request_id: "r0" })],
    { name: "success", record: null, order: { request_id: "r0" } }, end],
  ["a little early", many,
    [...sent, problem(403, "not-started", { starts_at: "2030-01-01T00:00:00Z" })],
    { name: "closed", record }, ["refresh", "at-start"]],
  ["the start after an early click", many,
    [...sent, problem(403, "not-started", { starts_at: "2030-01-01T00:00:00Z" }), retry],
    { name: "queued" }, ["save", "buy"]],
  ["a sale's news do not end the wait for the start", many,
    [...sent, problem(403, "not-started", { starts_at: "2030-01-01T00:00:00Z" }), open],
    { name: "closed", record }, []],
  ["paused meanwhile: the page does not repeat by itself", many,
    [...sent, { ...problem(403, "paused"), retryAfterMs: 5000 }],
    { name: "closed", note: "paused", record, retryAt: null }, ["refresh"]],
  ["open again: the record is kept", many, [...sent, problem(403, "paused"), open],
    { name: "idle", record }, []],
  ["open again: the same request", many, [...sent, problem(403, "paused"), open, click],
    { name: "queued", record }, buy],
  ["an expired id is replaced", many, [...sent, problem(403, "request-id-invalid")],
    { name: "queued" }, ["forget", "get-id"]],
  ["only once", many,
    [...sent, problem(403, "request-id-invalid"), id, problem(403, "request-id-invalid")],
    { name: "failed", note: "request-id-invalid", record: null }, [...end, "after"]],
  ["a reused id: its own order is shown", many, [...sent, problem(422, "request-id-reused")],
    { name: "queued", record }, ["poll"]],
  ["credentials expired", many, [...sent, problem(401, "unauthenticated")],
    { name: "unknown", note: "sign-in", record }, ["sign-in"]],
  ["another refusal", many, [...sent, problem(400, "invalid-request")],
    { name: "failed", note: "invalid-request", record: null }, [...end, "after"]],

  // The status
  ["success by the stream", many, [...sent, answer(202, queued), status(200, success)],
    { name: "success", record: null }, [...end, "after"]],
  ["still queued", many, [...sent, answer(202, queued), status(200, queued, 9000)],
    { name: "queued", record: { ...record, queued_at: 9000 } }, ["watch"]],
  ["failed later", many,
    [...single, answer(202, queued), status(200, { state: "failed", reason: "sold-out" })],
    { name: "failed", note: "sold-out", record: null }, end],
  ["not found within the grace", many, [...sent, lost, status(404, null, 5999)],
    { name: "queued", record }, ["poll"]],
  ["not found, and the clock was set back", many, [
    { type: "record", record: { ...record, sent_at: 3600000 }, now: 9000 }, status(404, null, 9000),
  ], { name: "unknown" }, []],
  ["not found after the grace", many, [...sent, lost, status(404, null, 6000)],
    { name: "unknown", note: "unknown", record }, []],
  ["the grace counts from the acceptance", many,
    [...sent, answer(202, queued), status(200, queued, 8000), status(404, null, 12999)],
    { name: "queued" }, ["poll"]],
  ["a late answer", many,
    [...sent, status(404, null, 6000), answer(200, success)], { name: "success" },
    [...end, "after"]],
  ["the answer to another request", many, [...sent, { ...answer(200, success), id: "r9" }],
    { name: "queued", record }, []],
  ["a click when unknown", many, [...sent, lost, status(404, null, 6000),
    { ...click, quantity: 1, now: 1000 }], { name: "queued", record }, buy],
  ["the server is away", many, [...sent, lost, status(0, null)],
    { name: "queued", note: "unreachable", record }, ["poll"]],
  ["the status of another request", many, [...sent, { ...status(200, success), id: "r9" }],
    { name: "queued" }, []],
  ["the page is shown again", many, [...sent, answer(202, queued), { type: "wake" }],
    { name: "queued" }, ["watch"]],

  // Reload and tabs
  ["a record is found", many, [{ type: "record", record, now: 2000 }],
    { name: "queued", record, since: 1000 }, ["poll"]],
  ["an older record is unknown", many,
    [{ type: "record", record, now: 9000 }, status(404, null, 9000)], { name: "unknown" }, []],
  ["another tab buys", many, [open, { type: "record", record, now: 1000 }],
    { name: "queued", record }, ["poll"]],
  ["another tab's success", many,
    [open, { type: "record", record, now: 1000 }, status(200, success)],
    { name: "success" }, [...end, "after"]],
  ["another tab was refused", many,
    [open, { type: "record", record, now: 1000 }, { type: "record", record: null },
      status(404, null)], { name: "idle", record: null }, ["refresh"]],
  ["two tabs: the own purchase goes on", many,
    [...sent, { type: "record", record: { ...record, request_id: "r2" }, now: 1000 }],
    { name: "queued", record }, []],

  // First paint
  ["an order is known", one, [open, { type: "mine", owned: 1, request_id: "r1",
    state: "success" }], { name: "success", order: { request_id: "r1" } }, []],
  ["a cancelled order frees the button", one, [open, { type: "mine", owned: 1, request_id: "r1",
    state: "success" }, { type: "mine", owned: 0, request_id: "r2" }],
  { name: "idle", nextId: "r2" }, []],
  ["an order that ended for good is not shown as placed", one,
    [open, { type: "mine", owned: 0, request_id: "r1", state: "success" }],
    { name: "failed", note: "order-ended" }, []],
  ["it ends while the page is open", one, [open, { type: "mine", owned: 1, request_id: "r1",
    state: "success" }, { type: "mine", owned: 0, request_id: "r1", state: "success" }],
  { name: "failed", note: "order-ended" }, []],
  ["a pause does not free the button", one,
    [open, { type: "mine", owned: 0, request_id: "r1", state: "success" }, paused, open],
    { name: "failed", note: "order-ended" }, []],
  ["an order that ended, once it may be bought again", one,
    [open, { type: "mine", owned: 0, request_id: "r1", state: "success" },
      { type: "mine", owned: 0, request_id: "r2" }], { name: "idle", nextId: "r2" }, []],
  ["queued on another device", one, [open, { type: "mine", owned: 2, request_id: "r1",
    state: "queued", now: 1000 }], { name: "queued", record: accepted }, ["save", "watch"]],
  ["the limit is known", quota, [open, { type: "mine", owned: 5, limit: 5 }],
    { name: "limit" }, []],
  ["the limit returns", quota, [open, { type: "mine", owned: 5, limit: 5 },
    { type: "mine", owned: 3, limit: 5 }], { name: "idle" }, []],

  // Tickets
  ["a question first", "ticket", [open, click], { name: "challenge" }, ["challenge"]],
  ["no answer", "ticket", [open, click, { type: "challenge-closed" }],
    { name: "idle", record: null }, []],
  ["the ticket's path", "ticket", [open, click, { type: "ticket", path_id: "p1" }, id],
    { name: "queued", record: { ...record, path_id: "p1" } }, ["save", "buy"]],
  ["the ticket has expired", "ticket", [open, click, { type: "ticket", path_id: "p1" }, id,
    problem(403, "ticket-invalid")],
  { name: "challenge", record: { ...record, path_id: null } }, ["save", "challenge"]],
  ["a new ticket, the same request", "ticket", [open, click, { type: "ticket", path_id: "p1" },
    id, problem(403, "ticket-invalid"), { type: "ticket", path_id: "p2", now: 1000 }],
  { name: "queued", record: { ...record, path_id: "p2" } }, ["save", "buy"]],
  ["a sent request is not forgotten", "ticket", [open, click, { type: "ticket", path_id: "p1" },
    id, problem(403, "ticket-invalid"), { type: "challenge-closed" }],
  { name: "unknown", record: { ...record, path_id: null } }, []],
];

/** Whether every member of `part` is in `whole`. */
function contains(whole, part) {
  if (part === null || typeof part !== "object") return whole === part;
  return whole !== null && typeof whole === "object" &&
    Object.keys(part).every((key) => contains(whole[key], part[key]));
}

const faults = [];
for (const [what, policy, events, expected, effects] of rows) {
  const isTicket = policy === "ticket";
  let state = mod.initial(isTicket ? many : policy, isTicket);
  let last = [];
  for (const event of events) {
    const input = JSON.stringify(state);
    const next = mod.step(state, { now: 1000, ...event });
    if (JSON.stringify(state) !== input) faults.push(`${what}: the state was changed in place`);
    ({ state, effects: last } = next);
  }
  const named = effects.map((effect) => (Array.isArray(effect) ? effect : [effect]));
  const isSame = last.length === named.length && named.every(([name, carried], at) =>
    last[at].do === name && (carried === undefined || contains(last[at].record, carried)));
  if (!isSame) faults.push(`${what}: effects ${JSON.stringify(last)}`);
  if (!contains(state, expected)) faults.push(`${what}: ${JSON.stringify(state)}`);
}
return { rows: rows.length, faults };

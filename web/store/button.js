// The one button of a SKU as a pure function: step(state, event) -> {state, effects}.
//
// No DOM, no network, no clock: events carry the time, effects say what to do. `purchase.js`
// carries the effects out, `sku.js` draws the state.
//
// A record {request_id, quantity, path_id, sent_at, queued_at} stands for one purchase. It is
// saved before it is sent and forgotten only at an end state: a repeat is no second purchase.

/** Not found is "still on its way" for this long after the last sign of acceptance. */
export const GRACE_MS = 5000;
/** Automatic repeats of an answer "busy". */
export const BUSY_TRIES = 5;
/** How long a success is shown before the button offers the next purchase. */
const SUCCESS_MS = 2000;
/** News of the sale that come sooner than this after a refusal may be older than the refusal. */
const NEWS_LAG_MS = 2000;
const POLL_MS = 1000;
const UNREACHABLE_MS = 2000;

const FINAL = ["sold-out", "ended", "barred"];
/** States of an order that stands. */
const LIVE = ["pending_payment", "paying", "paid"];

/** The first state of a SKU's button; `policy` is the policy's kind. */
export function initial(policy, ticketRequired = false) {
  return {
    name: "closed",
    policy,
    ticketRequired,
    note: null,
    record: null,
    nextId: null,
    sale: null,
    tries: 0,
    renewed: false,
    retried: false,
    released: false,
    isShort: false,
    again: false,
    owned: null,
    limit: null,
    order: null,
    orderEnded: false,
    since: 0,
    retryAt: null,
  };
}

export function step(state, event) {
  const handler = HANDLERS[event.type];
  return handler ? handler(state, event) : stay(state);
}

const stay = (state, effects = []) => ({ state, effects });
const go = (state, name, changes = {}, effects = []) => ({
  state: { ...state, name, note: null, retryAt: null, ...changes },
  effects,
});

/** Where the button rests while nothing is bought: by sale, limit and stock. */
function rest(state, changes = {}, effects = []) {
  const next = { ...state, record: null, tries: 0, released: false, ...changes };
  const sale = next.sale;
  if (!sale || sale.phase !== "open") {
    return go(next, "closed", { note: changes.note ?? sale?.phase ?? null }, effects);
  }
  if (next.limit !== null && next.owned !== null && next.owned >= next.limit) {
    return go(next, "limit", {}, effects);
  }
  if (next.orderEnded) return go(next, "failed", { note: "order-ended" }, effects);
  if (sale.soldOut) return go(next, "failed", { note: "sold-out" }, effects);
  return go(next, "idle", { note: changes.note ?? null }, effects);
}

/** Sends the record; the state is busy before anything is awaited. */
function send(state, record, now, changes = {}) {
  const sent = { ...record, sent_at: now, queued_at: null };
  return go(state, "queued", { ...changes, record: sent, since: changes.since ?? now }, [
    { do: "save", record: sent },
    { do: "buy", record: sent },
  ]);
}

function click(state, event) {
  if (state.name === "unknown" && state.record) {
    const again = { ...state, tries: 0, renewed: false, since: event.now };
    return prepared(again, state.record, event.now);
  }
  if (state.name !== "idle") return stay(state);
  const fresh = { tries: 0, renewed: false, retried: false, released: false, since: event.now };
  if (state.record) return send(state, state.record, event.now, fresh);
  const record = { request_id: state.nextId, quantity: event.quantity, path_id: null };
  if (state.ticketRequired) {
    return go(state, "challenge", { ...fresh, record }, [{ do: "challenge" }]);
  }
  return prepared({ ...state, ...fresh }, record, event.now);
}

/** Sends a record, after an id has been requested for it if it has none. */
function prepared(state, record, now) {
  if (record.request_id) return send(state, record, now, { since: state.since });
  return go(state, "queued", { record }, [{ do: "get-id" }]);
}

function ticket(state, event) {
  if (state.name !== "challenge") return stay(state);
  return prepared({ ...state, since: event.now }, { ...state.record, path_id: event.path_id },
    event.now);
}

function challengeClosed(state) {
  if (state.name !== "challenge") return stay(state);
  // A record that was sent before may be an order: it is kept.
  if (state.record?.sent_at) return go(state, "unknown", { note: "unknown" });
  return rest(state);
}

function requestId(state, event) {
  if (state.name !== "queued" || !state.record) return stay(state);
  const record = { ...state.record, request_id: event.request_id };
  return send(state, record, event.now, { since: state.since });
}

/** No id was issued: nothing was sent, so nothing can have been bought. */
function idRefused(state, event) {
  if (state.name !== "queued") return stay(state);
  if (event.status === 401) return rest(state, { note: "stranger" }, [{ do: "sign-in" }]);
  if (event.status === 503 || event.status === 429) return busy(state, event);
  return rest(state, { note: event.status ? "refused" : "unsent", since: event.now });
}

/** Another tab, or an earlier visit, has begun a purchase: this tab shows it. */
function record(state, event) {
  if (event.record === null) {
    const isOurs = state.record?.request_id && ["queued", "unknown"].includes(state.name);
    // The end is read from the status; without one nothing was accepted.
    if (!isOurs) return stay(state);
    return stay({ ...state, released: true }, [poll(state.record, 0)]);
  }
  if (state.record?.request_id === event.record.request_id) return stay(state);
  if (state.name === "queued" && state.record?.sent_at) return stay(state);
  const since = event.record.sent_at ?? event.now;
  return go(state, "queued", { record: event.record, since, tries: 0 }, [poll(event.record, 0)]);
}

/** Whether the news of the sale undo this refusal: "ended" stays readable until it opens again. */
const isOver = (state, phase) =>
  state.name === "failed" && (state.note === "ended") === (phase === "open");

/** Whether a count of the stock may undo this refusal; its reason stays readable. */
const isUndone = (state, now) => state.name === "failed" && state.note === "sold-out" &&
  now - state.since > NEWS_LAG_MS;

function sale(state, event) {
  const next = { ...state, sale: { phase: event.phase, soldOut: event.soldOut } };
  const rests = ["closed", "idle", "limit"].includes(state.name) ||
    isUndone(state, event.now) || isOver(state, event.phase);
  if (!rests || state.name === "closed" && state.retryAt) return stay(next);
  const { record: kept, name, note } = state;
  const result = rest(next);
  result.state.record = kept;
  const isReachable = note === "unsent" && event.now - state.since > NEWS_LAG_MS;
  const isKept = ["idle", "failed"].includes(name) && note !== "ended" && !isReachable;
  if (result.state.name === "idle" && isKept) result.state.note = note;
  return result;
}

function mine(state, event) {
  const counts = { owned: event.owned ?? null, limit: event.limit ?? null };
  const nextId = event.state ? null : event.request_id ?? state.nextId;
  // An order that holds no units has ended, and the buyer may not buy again.
  const orderEnded = event.state === "success" && counts.owned === 0;
  const next = { ...state, ...counts, nextId, orderEnded };
  const isBusy = ["queued", "unknown", "challenge"].includes(state.name);
  if (isBusy || state.record) return stay(next);
  if (event.state === "success" && !orderEnded) {
    const order = state.order ?? { request_id: event.request_id };
    return go(next, "success", { order });
  }
  if (event.state === "queued") {
    const seen = { request_id: event.request_id, quantity: event.owned, path_id: null };
    const found = { ...seen, sent_at: event.now, queued_at: event.now };
    return go(next, "queued", { record: found, since: event.now }, [
      { do: "save", record: found },
      watch(found, 0),
    ]);
  }
  if (state.name === "success" && state.policy !== "one_per_buyer") return stay(next);
  const isRefused = state.name === "failed" && state.note !== "order-ended";
  if (isRefused && !isUndone(state, event.now)) return stay(next);
  const result = rest(next, { order: null });
  const isSame = result.state.name === state.name || state.name === "failed";
  if (isSame) result.state.note ??= state.note;
  return result;
}

/** An id was asked for before the start, so that the click is one call. */
function preparedId(state, event) {
  return stay({ ...state, nextId: state.nextId ?? event.request_id });
}

const watch = (record, afterMs) => ({ do: "watch", id: record.request_id, afterMs });
const poll = (record, afterMs, jitter = 0) => ({
  do: "poll", id: record.request_id, afterMs, jitter,
});

/** The answer to the purchase. */
function answer(state, event) {
  // It may come late: the page has meanwhile looked for the request, and not found it.
  const isOurs = state.record && state.record.request_id === event.id;
  if (!isOurs || !["queued", "unknown"].includes(state.name)) return stay(state);
  const { status, body, now } = event;
  const code = body?.code;
  if (status === 200 && body?.state === "success") return succeeded(state, body, now);
  if (status === 202 && body?.state === "queued") return accepted(state, body, now, true);
  if (status === 503 || status === 429) return busy(state, event);
  if (status === 401) return signIn(state);
  if (code === "paused") return paused(state);
  if (code === "not-started") return tooEarly(state, event);
  if (code === "request-id-invalid") return renew(state);
  if (code === "ticket-invalid" || code === "challenge-failed") {
    const kept = { ...state.record, path_id: null };
    return go(state, "challenge", { record: kept }, [
      { do: "save", record: kept },
      { do: "challenge" },
    ]);
  }
  // Of this id something else was asked: what became of it is the truth.
  if (code === "request-id-reused") return stay(state, [poll(state.record, 0)]);
  if (status >= 400 && status < 500 && code) return refused(state, code, body, now);
  return unsure(state);
}

/** The request may or may not have been accepted: its status knows. */
function unsure(state) {
  return go(state, "queued", { note: "checking" }, [poll(state.record, 0)]);
}

function lost(state, event) {
  const isOurs = state.name === "queued" && state.record?.request_id === event.id;
  return isOurs ? unsure(state) : stay(state);
}

function accepted(state, body, now, first) {
  const kept = { ...state.record, queued_at: now };
  const effects = [watch(kept, body.poll_after_ms ?? POLL_MS)];
  if (first || !state.record.queued_at) effects.unshift({ do: "save", record: kept });
  return go(state, "queued", { record: kept, note: "accepted" }, effects);
}

function succeeded(state, body, now) {
  const counts = body.quota ?? { owned: state.owned, limit: state.limit };
  const effects = [{ do: "forget" }, { do: "refresh" }];
  if (!LIVE.includes(body.order?.state)) {
    const nextId = body.again ?? null;
    const orderEnded = state.policy === "one_per_buyer" && !nextId;
    return rest({ ...state, ...counts, nextId, orderEnded }, { note: "order-ended" }, effects);
  }
  if (state.policy !== "one_per_buyer") {
    effects.push({ do: "after", ms: SUCCESS_MS, timer: "settle" });
  }
  return go(state, "success", {
    record: null, nextId: null, order: body.order, again: true, isShort: false, tries: 0,
    since: now, ...counts,
  }, effects);
}

function settle(state) {
  if (state.name !== "success" && state.name !== "failed") return stay(state);
  return rest(state);
}

/** A final refusal: nothing was bought with this record. */
function refused(state, code, body, now) {
  const forget = [{ do: "forget" }, { do: "refresh" }];
  if (code === "already-purchased") {
    return go(state, "success", { record: null, order: { request_id: body.request_id } }, forget);
  }
  if (code === "quota-exceeded") {
    const counts = { owned: body.owned ?? state.owned, limit: body.limit ?? state.limit };
    return rest({ ...state, ...counts }, { note: "quota-exceeded" }, forget);
  }
  const isShort = code === "sold-out";
  const ends = FINAL.includes(code) ? [] : [{ do: "after", ms: 2 * SUCCESS_MS, timer: "settle" }];
  const changes = { record: null, note: code, nextId: null, since: now, isShort };
  // A smaller request may succeed: how many units are left, the news of the sale tell.
  if (isShort && state.record.quantity > 1) return rest(state, changes, forget);
  return go(state, "failed", changes, [...forget, ...ends]);
}

function busy(state, event) {
  const tries = state.tries + 1;
  if (tries > BUSY_TRIES) return go(state, "unknown", { tries: 0, note: "still-busy" });
  const ms = event.retryAfterMs ?? POLL_MS;
  return go(state, "queued", { tries, note: "busy", retryAt: event.now + ms }, [
    { do: "after", ms, jitter: 0.3, timer: "retry" },
  ]);
}

/** The record is kept: once the sale goes on, a click sends the same request. */
const paused = (state) => go(state, "closed", { note: "paused" }, [{ do: "refresh" }]);

/** The server decides when the sale begins: an early click waits, it has not failed. */
function tooEarly(state, { body, now }) {
  // A second time: the clocks differ, and the news of the sale open the button.
  if (!body.starts_at || state.retried) return paused(state);
  return go(state, "closed", { note: "before", retried: true, retryAt: now }, [
    { do: "refresh" },
    { do: "at-start", startsAt: body.starts_at, jitter: 0.3 },
  ]);
}

function retry(state, event) {
  const waits = state.name === "queued" || state.name === "closed" && state.retryAt;
  return waits && state.record ? prepared(state, state.record, event.now) : stay(state);
}

function renew(state) {
  if (state.renewed) return refused(state, "request-id-invalid", {}, state.since);
  // An id that was accepted once stays valid: this one was never accepted.
  const without = { ...state.record, request_id: null, sent_at: null };
  return go(state, "queued", { renewed: true, record: without, nextId: null }, [
    { do: "forget" },
    { do: "get-id" },
  ]);
}

function signIn(state) {
  return go(state, "unknown", { note: "sign-in" }, [{ do: "sign-in" }]);
}

/** The status of the request, polled or from its event stream. */
function status(state, event) {
  const isOurs = state.record && state.record.request_id === event.id;
  if (!isOurs || !["queued", "unknown"].includes(state.name)) return stay(state);
  const { body, now } = event;
  if (event.status === 200 && body.state === "success") return succeeded(state, body, now);
  if (event.status === 200 && body.state === "queued") return accepted(state, body, now, false);
  if (event.status === 200 && body.state === "failed") {
    return refused(state, body.reason, body, now);
  }
  if (event.status === 401) return signIn(state);
  if (event.status === 404) return notFound(state, now);
  const ms = Math.max(event.retryAfterMs ?? 0, UNREACHABLE_MS);
  return go(state, state.name, { note: "unreachable" }, [poll(state.record, ms, 0.3)]);
}

function notFound(state, now) {
  if (state.released) return rest(state, {}, [{ do: "refresh" }]);
  const sign = Math.max(state.record.queued_at ?? 0, state.record.sent_at ?? 0);
  // Far in the future: the device's clock was set back.
  const isOver = Math.abs(now - sign) >= GRACE_MS;
  if (isOver) return go(state, "unknown", { note: "unknown" });
  return go(state, state.name, { note: state.note ?? "checking" }, [poll(state.record, POLL_MS)]);
}

/** The page is shown again, or the connection is back: read what happened meanwhile. */
function wake(state) {
  if (state.name === "idle" && state.note === "unsent") return stay({ ...state, note: null });
  const waits = ["queued", "unknown"].includes(state.name) && state.record?.request_id;
  return waits && state.note !== "busy" ? stay(state, [watch(state.record, 0)]) : stay(state);
}

const HANDLERS = {
  click,
  ticket,
  "challenge-closed": challengeClosed,
  "request-id": requestId,
  "id-refused": idRefused,
  record,
  sale,
  mine,
  "prepared-id": preparedId,
  answer,
  lost,
  status,
  retry,
  settle,
  wake,
};

// The calls of the shop, who the buyer is, and the server's clock.
//
// Every address is relative: the page works below any prefix. An answer is {status, body,
// retryAfterMs}; status 0: no answer, what was sent may have arrived.

import { read, write } from "./records.js";

const CALL_MS = 15000;
/** The server says something at least every 15 s: an event stream that says less is dead. */
const SILENT_MS = 40000;

export const { auth } = document.documentElement.dataset;

/** Whether the shop takes payments. */
export const canPay = document.documentElement.dataset.payments === "on";

/** The buyer that a token names. */
export function subject(token) {
  try {
    const part = token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/");
    return String(JSON.parse(atob(part)).sub ?? "");
  } catch {
    return "";
  }
}

const BUYER_MAX = 2n ** 63n - 1n;
const isBuyer = (id) => /^[1-9]\d{0,18}$/.test(id) && BigInt(id) <= BUYER_MAX;

/** The buyer, if one is known. With tokens a login service leads back to `#token=<JWT>`. */
export function buyer() {
  if (auth === "jwt") return subject(session.token ?? "") || null;
  return read("fg1:buyer");
}

const session = { token: null };

/** The token of a link that names another buyer than the one who is signed in. */
export let offered = null;

if (auth === "jwt") {
  session.token = read("fg1:token");
  const sent = /[#&]token=([^&]+)/.exec(location.hash)?.[1];
  if (sent) {
    history.replaceState(null, "", location.pathname + location.search);
    // Anyone can send such a link: what the buyer buys then would belong to somebody else.
    if (buyer() && buyer() !== subject(sent)) offered = isBuyer(subject(sent)) ? sent : null;
    else signIn(sent);
  }
} else if (!buyer()) {
  // A shop without logins is for trying out: a newcomer gets a number and may change it.
  write("fg1:buyer", String(10000 + crypto.getRandomValues(new Uint32Array(1))[0] % 90000));
}

/** Sets the buyer's number, or the token. False if it cannot be one. */
export function signIn(text) {
  const value = text.trim();
  if (auth === "jwt") {
    if (!isBuyer(subject(value))) return false;
    write("fg1:token", value);
    session.token = value;
    return true;
  }
  if (!isBuyer(value)) return false;
  write("fg1:buyer", value);
  return true;
}

/** Takes the token that another tab has stored; the page of another buyer begins anew. */
export function follow(token) {
  if (subject(token ?? "") === (buyer() ?? "")) session.token = token;
  else location.reload();
}

/** Forgets the token, as on a machine that others use, too. */
export function signOut() {
  write("fg1:token", null);
  session.token = null;
}

function credentials() {
  if (auth === "jwt") return session.token ? { Authorization: `Bearer ${session.token}` } : {};
  return { "X-Buyer-Id": buyer() };
}

export async function call(method, path, body, ms = CALL_MS) {
  const headers = { Accept: "application/json", ...credentials() };
  const init = { method, headers, cache: "no-store", signal: AbortSignal.timeout(ms) };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  try {
    const answer = await fetch(path, init);
    const seconds = Number(answer.headers.get("Retry-After"));
    const retryAfterMs = seconds > 0 ? seconds * 1000 : null;
    const body = await answer.json().catch(() => null);
    // A success that cannot be read, as of a login page of the network, is no answer of the shop.
    return { status: answer.ok && body === null ? 0 : answer.status, body, retryAfterMs };
  } catch {
    return { status: 0, body: null, retryAfterMs: null };
  }
}

const id = encodeURIComponent;

// The server's clock: its time at the middle of the call with the shortest round trip of eight.
const samples = [];
/** Most milliseconds by which two clocks drift apart while the page is shown. */
const DRIFT_MS = 1000;

/**
 * The page's own clock stands still while the device sleeps, and the device's clock may be set:
 * the page's clock counts as long as both go on alike, then that of the device.
 */
export const serverNow = () => {
  const [own, device] = [performance.now(), Date.now()];
  const goesOn = (sample) => Math.abs(device - sample.device - (own - sample.own)) < DRIFT_MS;
  const even = samples.filter(goesOn);
  if (even.length > 0) {
    const best = even.reduce((a, b) => (b.trip < a.trip ? b : a));
    return best.time + own - best.own;
  }
  const last = samples.at(-1);
  return last ? last.time + device - last.device : device;
};

async function timed(path) {
  const sent = performance.now();
  const answer = await call("GET", path);
  const time = Date.parse(answer.body?.server_time);
  if (!Number.isNaN(time)) {
    const own = performance.now();
    const trip = own - sent;
    samples.push({ trip, time: time + trip / 2, own, device: Date.now() });
    if (samples.length > 8) samples.shift();
  }
  return answer;
}

export const sales = (cursor) => timed(`v1/sales${cursor ? `?cursor=${id(cursor)}` : ""}`);
export const sale = (saleId) => timed(`v1/sales/${id(saleId)}`);

/**
 * The first pages of a list, as one; `name`: the member that holds the list. Those that cannot be
 * read now are missing. A shop may allow one call a second.
 */
async function firstPages(pages, read, name) {
  const answer = await read();
  const found = answer.body?.[name] ?? [];
  for (let left = pages - 1; left > 0 && answer.body?.next_cursor; left -= 1) {
    let next = await read(answer.body.next_cursor);
    if (next.status === 429) {
      await new Promise((done) => setTimeout(done, next.retryAfterMs ?? 1000));
      next = await read(answer.body.next_cursor);
    }
    if (next.status === 401) return next;
    if (next.status !== 200) return { ...answer, retryAfterMs: next.retryAfterMs };
    found.push(...next.body[name]);
    answer.body.next_cursor = next.body.next_cursor;
  }
  return answer;
}

export const allSales = (pages) => firstPages(pages, sales, "sales");
export const allOrders = (pages) => firstPages(pages, orders, "orders");

export const mine = (saleId) => call("GET", `v1/sales/${id(saleId)}/mine`);
export const requestId = (saleId, sku) =>
  call("POST", `v1/sales/${id(saleId)}/request-ids`, { sku_id: sku });
export const challenge = (saleId, kind) =>
  call("POST", `v1/sales/${id(saleId)}/challenges`, { kind });
export const ticket = (saleId, challenge_id, answer) =>
  call("POST", `v1/sales/${id(saleId)}/tickets`, { challenge_id, answer });
export const buy = (pathId, sku, { quantity, request_id }) =>
  call("POST", `v1/buy/${id(pathId)}`, { sku_id: sku, quantity, request_id });
export const request = (requestId) => call("GET", `v1/requests/${id(requestId)}`);
export const orders = (cursor) => call("GET", `v1/orders${cursor ? `?cursor=${id(cursor)}` : ""}`);
export const pay = (requestId) => call("POST", `v1/orders/${id(requestId)}/payment`);
export const cancel = (requestId) => call("DELETE", `v1/orders/${id(requestId)}`);

/**
 * The events of a request, by fetch: EventSource can send no credentials and hides the status.
 * Calls back with each state. Resolves to true after an end state, false if the page has to poll.
 */
export async function events(requestId, signal, callback) {
  const silence = new AbortController();
  let timer = null;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), SILENT_MS);
  };
  try {
    heard();
    const headers = { Accept: "text/event-stream", ...credentials() };
    const either = AbortSignal.any([signal, silence.signal]);
    const init = { headers, cache: "no-store", signal: either };
    const answer = await fetch(`v1/requests/${id(requestId)}/events`, init);
    if (answer.status !== 200) return false;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return false;
      heard();
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data: "));
        if (lines.length === 0) continue;
        const body = JSON.parse(lines.map((line) => line.slice(6)).join("\n"));
        callback(body);
        if (body.poll_after_ms === 0) return true;
      }
    }
  } catch {
    return false;
  } finally {
    clearTimeout(timer);
  }
}


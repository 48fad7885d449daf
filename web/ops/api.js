// Calls of the internal listener. Every path is relative to the page, so that the page works below
// any prefix of a reverse proxy.

const BASE = new URL("../admin/v1/", document.baseURI);
const TOKEN = "floodgate-admin-token";

/** A refusal or a failure: `code` of the problem document, or `unreachable`. */
export class CallError extends Error {
  constructor(code, message, { status = 0, trace = "", answer = {} } = {}) {
    super(message);
    Object.assign(this, { code, status, trace, answer });
  }
}

/** The token lives as long as the tab. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (text) => (text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN)),
};

/**
 * What the token permits, and whether this process can publish messages, as the server says; the
 * server refuses the rest by itself.
 */
export const access = { scope: "read", hasBroker: false, hasBuckets: false };

/** After this long an answer is late: a read is given up, a verb is waited for. */
export const LATE_MS = 15_000;

let ahead = 0;

/** The server's time, to the second: the clock of this machine may be wrong. */
export const serverNow = (now = Date.now()) => now - ahead;

function compareClocks(response) {
  const time = Date.parse(response.headers.get("date") ?? "");
  // Within two seconds the header's whole seconds say nothing.
  if (!Number.isNaN(time)) ahead = Math.abs(Date.now() - time) < 2000 ? 0 : Date.now() - time;
}

/** The JSON document of an answer; without one, as of a proxy, an empty one. */
async function readBody(response) {
  const text = await response.text();
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

async function call(method, path, body, signal) {
  const headers = { accept: "application/json" };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  let answer;
  try {
    const sent = body === undefined ? undefined : JSON.stringify(body);
    response = await fetch(new URL(path, BASE), { method, headers, body: sent, signal });
    answer = await readBody(response);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError("unreachable", "The server does not answer.");
  }
  compareClocks(response);
  const trace = (response.headers.get("traceparent") ?? "").split("-")[1] ?? "";
  if (!response.ok) {
    const text = answer.detail ?? answer.title ?? `The server answered ${response.status}.`;
    throw new CallError(answer.code ?? "failed", text, {
      status: response.status,
      trace,
      answer,
    });
  }
  return { ...answer, trace };
}

export const get = (path, signal) =>
  call("GET", path, undefined, AbortSignal.any([signal, AbortSignal.timeout(LATE_MS)]));
/** A call that changes something is never given up: the server carries it out to its end. */
export const post = (path, body = {}) => call("POST", path, body);

/** The answer of a call, or null if it failed; a call that was ended stays ended. */
export const orNull = (called) =>
  called.catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });

/** The rows `name` of a list, page by page. */
export async function getAll(path, name, signal) {
  const rows = [];
  for (let cursor = ""; cursor !== undefined; ) {
    const page = await get(withQuery(path, { limit: 200, cursor }), signal);
    rows.push(...page[name]);
    cursor = page.next_cursor;
  }
  return rows;
}

/** The checks of the readiness probe, also where it says that this process is not ready. */
export const probe = (signal) =>
  get("../../readyz?verbose", signal).catch((error) => {
    if (error.status === 503 && error.answer.checks) return error.answer;
    throw error;
  });

/** `path` with the query of what is set in `values`. */
export function withQuery(path, values) {
  const set = Object.entries(values).filter(([, value]) => value !== "" && value !== undefined);
  const query = new URLSearchParams(set).toString();
  return query ? `${path}?${query}` : path;
}

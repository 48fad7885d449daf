// The operators' page: header, navigation, and the view that the query names.

import { html, render, useEffect, useRef, useState } from "./htm-preact.min.js";
import { access, get, getAll, serverNow, token } from "./api.js";
import { Actors } from "./actors.js";
import { Audit } from "./audit.js";
import { DeadLetters } from "./dead_letters.js";
import { Overview } from "./overview.js";
import { Fault, Link, age, clock } from "./parts.js";
import { Log, Payments } from "./payments.js";
import { Sales } from "./sales.js";
import { INTERVALS, focusMain, interval, usePolled, useParameters, visit } from "./state.js";
import { Trace } from "./trace.js";

const VIEWS = [
  ["overview", "Overview"],
  ["sales", "Sales"],
  ["dead-letters", "Dead letters"],
  ["payments", "Payments"],
  ["trace", "Trace"],
  ["actors", "Actors"],
  ["audit", "Audit"],
  ["log", "Verbs"],
];

/** What the refusal of the page's first calls means. */
const REFUSALS = {
  401: "This token is wrong.",
  403: "Without tokens the server answers only this machine, and nothing that a proxy forwarded.",
};

/** The server's settings allow no other characters, and a header cannot carry all others. */
const TOKEN = /^[\x21-\x7e]+$/;
const NO_TOKEN = {
  code: "invalid-token",
  message: "A token has only letters, digits and signs of ASCII, and no space.",
};

function LogIn({ logIn }) {
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(null);
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const send = (event) => {
    event.preventDefault();
    const sent = typed.trim();
    if (TOKEN.test(sent)) logIn(sent);
    else if (sent) setError(NO_TOKEN);
  };
  return html`<form class="card login" onSubmit=${send}>
    <h1>Operators only</h1>
    <input hidden autocomplete="username" value="operator" />
    <label
      ><span>Token (<code>admin.token</code>, or yours in <code>admin.tokens_file</code>)</span>
      <input
        ref=${field}
        type="password"
        autocomplete="current-password"
        value=${typed}
        onInput=${(event) => setTyped(event.target.value)}
    /></label>
    <${Fault} error=${error} />
    <p class="quiet">The token is kept until this tab is closed.</p>
    <p class="acts"><button class="primary">Log in</button></p>
  </form>`;
}

function Refresh({ at }) {
  const [seconds, setSeconds] = useState(interval.seconds);
  const choose = (event) => {
    interval.set(Number(event.target.value));
    setSeconds(interval.seconds);
  };
  return html`<label class="refresh"
    >Refresh
    <select value=${seconds} onChange=${choose}>
      ${INTERVALS.map(
        (s) => html`<option key=${s} value=${s}>${s === 0 ? "off" : `${s} s`}</option>`,
      )}
    </select>
    <span class="quiet">${at && `read at ${clock(serverNow(at))} UTC`}</span></label
  >`;
}

/** Where is this order? From every view. */
function Find() {
  const look = (event) => {
    event.preventDefault();
    const id = new FormData(event.target).get("id").trim();
    if (id) visit({ view: "trace", id });
    event.target.reset();
  };
  return html`<form class="find" role="search" onSubmit=${look}>
    <label class="visually-hidden" for="find">Find an order by its request id or number</label>
    <input id="find" name="id" placeholder="Find a request" autocomplete="off" />
    <button class="plain">Find</button>
  </form>`;
}

function Header({ view, stats, at, logOut }) {
  const nav = useRef(null);
  useEffect(() => {
    const current = nav.current.querySelector("[aria-current]");
    if (current) nav.current.scrollLeft = current.offsetLeft - nav.current.clientWidth / 3;
  }, [view]);
  const about =
    stats &&
    [
      `tier ${stats.tier}`,
      `role ${stats.role}`,
      stats.version,
      stats.ready ? `up ${age(stats.uptime_s * 1000)}` : "stopping",
      stats.scope === "read" ? `${stats.operator}, read only` : stats.operator,
    ].join(", ");
  const links = VIEWS.map(
    ([name, title]) =>
      html`<${Link} key=${name} to=${{ view: name }} aria-current=${name === view ? "page" : null}
        >${title}<//
      >`,
  );
  return html`<header class="bar">
    <p class="where">
      <b>Floodgate</b>
      <span class="place">${stats && `${stats.namespace} · `}${location.host}</span>
      <span class="quiet">${about ?? ""}</span>
    </p>
    <${Find} />
    ${token.get() && html`<button class="plain" onClick=${logOut}>Log out</button>`}
    <nav ref=${nav} aria-label="views">${links}</nav>
    <${Refresh} at=${at} />
  </header>`;
}

function View({ view, values, sales }) {
  const title = VIEWS.find(([name]) => name === view)?.[1] ?? "No such view";
  useEffect(() => {
    document.title = `${title} · Floodgate`;
  }, [title]);
  const bodies = {
    overview: () => html`<${Overview} sales=${sales} sale=${values.sale} />`,
    sales: () => html`<${Sales} key=${values.sale} values=${values} />`,
    "dead-letters": () => html`<${DeadLetters} values=${{ ...values, view }} sales=${sales} />`,
    payments: () => html`<${Payments} values=${values} />`,
    log: () => html`<${Log} values=${values} />`,
    trace: () => html`<${Trace} values=${values} />`,
    actors: () => html`<${Actors} />`,
    audit: () => html`<${Audit} sales=${sales} />`,
  };
  return html`<h1>${title}</h1>
    ${Object.hasOwn(bodies, view) ? bodies[view]() : html`<p>There is no such view.</p>`}`;
}

function App() {
  const values = useParameters();
  const view = values.view ?? "overview";
  const [session, setSession] = useState(0);
  const { answer, error, at } = usePolled(async (signal) => {
    const [stats, sales] = await Promise.all([
      get("stats", signal),
      getAll("sales", "sales", signal),
    ]);
    const hasBuckets = ["gate", "pipeline"].includes(stats.tier);
    Object.assign(access, { scope: stats.scope, hasBroker: stats.tier === "pipeline", hasBuckets });
    return { stats, sales };
  }, `session ${session}`, view);
  const isRefused = error?.status === 401;
  const change = (text) => {
    token.set(text);
    setSession(session + 1);
    focusMain();
  };
  const stale = answer && at ? ` The page shows what it read at ${clock(serverNow(at))} UTC.` : "";
  const message = REFUSALS[error?.status] ?? `${error?.message}${stale}`;
  // Before a token was sent, its absence is no fault.
  const fault = error && (!isRefused || token.get()) && { ...error, message };
  return html`<${Header}
      view=${view}
      stats=${!isRefused && answer?.stats}
      at=${at}
      logOut=${() => change("")}
    />
    <main id="main" tabindex="-1">
      <${Fault} error=${fault} />
      ${
        isRefused
          ? html`<${LogIn} logIn=${change} />`
          : answer &&
            html`<${View} key=${view} view=${view} values=${values} sales=${answer.sales} />`
      }
    </main>`;
}

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);

// The operators' page: header, navigation, and the view that the query names.

import { html, render, useEffect, useState } from "./htm-preact.min.js";
import { access, get, getAll, token } from "./api.js";
import { Actors } from "./actors.js";
import { Audit } from "./audit.js";
import { DeadLetters } from "./dead_letters.js";
import { Overview } from "./overview.js";
import { Fault, Link, age } from "./parts.js";
import { Log, Payments } from "./payments.js";
import { Sales } from "./sales.js";
import { INTERVALS, go, interval, usePolled, useParameters } from "./state.js";
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

function LogIn({ reload }) {
  const [typed, setTyped] = useState("");
  const send = (event) => {
    event.preventDefault();
    token.set(typed.trim());
    reload();
  };
  return html`<form class="card login" onSubmit=${send}>
    <h2>Operators only</h2>
    <input hidden autocomplete="username" value="operator" />
    <label
      >Token (<code>admin.token</code> of this installation)
      <input
        type="password"
        autocomplete="current-password"
        value=${typed}
        onInput=${(event) => setTyped(event.target.value)}
    /></label>
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
    <span class="quiet">${at ? new Date(at).toLocaleTimeString("en-GB") : ""}</span></label
  >`;
}

/** Where is this order? From every view. */
function Find() {
  const look = (event) => {
    event.preventDefault();
    const id = new FormData(event.target).get("id").trim();
    if (id) go({ view: "trace", id });
    event.target.reset();
  };
  return html`<form class="find" role="search" onSubmit=${look}>
    <label class="visually-hidden" for="find">Find an order by its request id or number</label>
    <input id="find" name="id" placeholder="Find a request" autocomplete="off" />
    <button class="plain">Find</button>
  </form>`;
}

function Header({ view, stats, at }) {
  const about =
    stats &&
    [
      `tier ${stats.tier}`,
      `role ${stats.role}`,
      stats.version,
      `up ${age(stats.uptime_s * 1000)}`,
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
      <b>Floodgate</b> <span class="place">${stats?.namespace ?? ""} · ${location.host}</span>
      <span class="quiet">${about ?? ""}</span>
    </p>
    <${Find} />
    <nav aria-label="views">${links}</nav>
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
  const { answer, error, at, reload } = usePolled(async (signal) => {
    const [stats, sales] = await Promise.all([
      get("stats", signal),
      getAll("sales", "sales", signal),
    ]);
    access.scope = stats.scope;
    return { stats, sales };
  }, "frame");
  const isRefused = error && (error.status === 401 || error.status === 403);
  return html`<${Header} view=${view} stats=${answer?.stats} at=${at} />
    <main id="main" tabindex="-1">
      <${Fault} error=${error} />
      ${
        isRefused
          ? html`<${LogIn} reload=${reload} />`
          : answer &&
            html`<${View} key=${view} view=${view} values=${values} sales=${answer.sales} />`
      }
    </main>`;
}

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);

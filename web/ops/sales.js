// Sales and their verbs.

import { html } from "./htm-preact.min.js";
import { access, get, getAll, orNull, post, serverNow } from "./api.js";
import { phaseOf } from "./diagnosis.js";
import { History, Last } from "./history.js";
import { Fault, Link, State, Table, Time, Verbs, count, money } from "./parts.js";
import { usePolled } from "./state.js";

const HEAD = [
  "SKU",
  "Title",
  "#Left",
  "#Initial",
  "#Price",
  "Policy",
  "#Buckets",
  "#To pay within",
];
const TONES = { open: "good", paused: "warn", "open, not begun": "warn", "open, over": "warn" };
const path = (sale, verb) => `sales/${encodeURIComponent(sale)}/${verb}`;

/** Whether rows of a sale may be deleted. */
const isPurged = ({ state }) => state === "purging" || state === "purged";

function PhaseVerbs({ sale: { sale_id: id, phase, retention } }) {
  const change = (name) => (reason) =>
    post(path(id, name), { reason }).then((sale) => ({
      says: `the sale is ${sale.phase}`,
      trace: sale.trace,
    }));
  const verbs = [
    {
      isOffered: phase !== "open" && phase !== "closed",
      name: "Open",
      title: `Open ${id}?`,
      effect: "The sale sells inside its window. It can be paused again.",
      run: change("open"),
    },
    {
      isOffered: phase === "open",
      name: "Pause",
      title: `Pause ${id}?`,
      effect:
        "Buyers are told that the sale is paused. " +
        "Accepted requests still become orders. It can be opened again.",
      run: change("pause"),
    },
    {
      isOffered: phase !== "closed",
      name: "Close",
      tone: "bad",
      title: `Close ${id} for good?`,
      effect: "A closed sale never opens again. Accepted requests still become orders.",
      phrase: id,
      run: change("close"),
    },
    {
      isOffered: phase !== "draft" && access.hasBuckets && !isPurged(retention),
      name: "Rebuild",
      tone: "bad",
      title: `Rebuild the buckets of ${id}?`,
      effect:
        "Its buckets are loaded from the ledger. " +
        "Purchases are answered busy meanwhile; accepted requests stay accepted.",
      phrase: id,
      run: (reason) =>
        post(path(id, "rebuild"), { reason }).then(({ skus, trace }) => ({
          says: `rebuilt: ${skus.join(", ")}`,
          trace,
        })),
    },
  ];
  const withReason = verbs.map((verb) => ({ ...verb, withReason: true, of: id }));
  return html`<${Verbs} verbs=${withReason} />`;
}

/** The default of `max_quantity`: the policy has no maximum of its own. */
const ANY_QUANTITY = 1_000_000;

function policyText({ kind, limit, max_quantity: max }) {
  const most = max > 1 && max < (limit ?? ANY_QUANTITY) ? `, at most ${max} an order` : "";
  if (kind === "quota") return `${limit} a buyer${most}`;
  return kind === "one_per_buyer" ? `one order a buyer${most}` : `no limit${most}`;
}

const HEALTH = { ready: "good", other_phase: "warn", other_stock: "warn" };

/** Whether the buckets of a sale are loaded, what they hold, and the gates of this process. */
function Buckets({ sale }) {
  const id = sale.sale_id;
  const read = async (signal) => {
    const [{ skus }, { actors }] = await Promise.all([
      get(path(id, "buckets"), signal),
      get("actors", signal),
    ]);
    return { skus, actors };
  };
  const { answer, error } = usePolled(read, `buckets ${id}`);
  const gates = (no) =>
    (answer?.actors ?? []).filter((actor) => actor.name.startsWith(`stock_gate/${no}/`));
  const rows = (answer?.skus ?? []).map((sku) => {
    const all = gates(sku.sku_no);
    const up = all.filter((gate) => gate.state === "up").length;
    const restarts = all.reduce((sum, gate) => sum + gate.restarts, 0);
    return html`<tr key=${sku.sku_id}>
      <th scope="row">${sku.sku_id}</th>
      <td>
        <${State} name=${sku.health.replace("_", " ")} tone=${HEALTH[sku.health] ?? "bad"} />
        ${sku.why ? html` <span class="quiet">${sku.why}</span>` : ""}
      </td>
      <td class="number">${count(sku.free)}</td>
      <td class="number">${count(sku.left_in_ledger)}</td>
      <td class="number">${count(sku.unsettled)}</td>
      <td>${sku.has_open_loan ? "open" : "none"}</td>
      <td class="number">${`${up} of ${all.length}`}</td>
      <td class="number">${count(restarts)}</td>
    </tr>`;
  });
  const head = ["SKU", "Buckets", "#Free", "#Left, ledger", "#Unsettled", "Loan"];
  return html`<${Fault} error=${error} />${
    answer &&
    html`<${Table}
      caption=${`buckets and gates of ${id}`}
      rows=${rows}
      empty="no SKU"
      head=${[...head, "#Gates up, here", "#Restarts"]}
    />`
  }`;
}

function One({ sale, last, isAlone }) {
  const phase = phaseOf(sale, serverNow());
  const { state: kept, since: keptSince } = sale.retention;
  const rows = sale.skus.map(
    (sku) =>
      html`<tr key=${sku.sku_id}>
        <th scope="row">${sku.sku_id}</th>
        <td>${sku.title}</td>
        <td class="number">${isPurged(sale.retention) ? kept : count(sku.stock_left)}</td>
        <td class="number">${count(sku.initial_stock)}</td>
        <td class="number">${money(sku.price, sale.currency)}</td>
        <td>${policyText(sku.policy)}</td>
        <td class="number">${sku.buckets}</td>
        <td class="number">${sku.payment_window_s ? `${sku.payment_window_s} s` : "any time"}</td>
      </tr>`,
  );
  return html`<article class="card">
    <header>
      <h2>${sale.sale_id} <${State} name=${phase} tone=${TONES[phase]} />${
        kept !== "kept" && html` <${State} name=${kept} />`
      }</h2>
      <p>${sale.title}</p>
      <p class="quiet">
        <${Time} at=${sale.starts_at} />${" to "}<${Time} at=${sale.ends_at} />
        ${` UTC, epoch ${sale.epoch}, ${sale.currency}`}
        ${kept !== "kept" && html`, ${kept} since <${Time} at=${keptSince} /> UTC`}
      </p>
      <${Last} verb=${last} />
    </header>
    <${Table} caption=${`SKUs of ${sale.sale_id}`} rows=${rows} empty="no SKU" head=${HEAD} />
    <p class="pages">
      <${Link} to=${{ view: "overview", sale: sale.sale_id }}>where its orders are<//>
      ${
        !isAlone &&
        html`<${Link} to=${{ view: "sales", sale: sale.sale_id }}>buckets, gates, history<//>`
      }
      <${Link} to=${{ view: "dead-letters", sale: sale.sale_id, state: "open" }}>dead letters<//>
    </p>
    <${PhaseVerbs} sale=${sale} />
    ${
      isAlone &&
      html`<h3>Buckets and gates</h3>
        <${Buckets} sale=${sale} />
        <h3>Who changed it</h3>
        <${History} subject=${`sale:${sale.sale_id}`} />`
    }
  </article>`;
}

/** Every sale, or the one that the address names. */
export function Sales({ values }) {
  const read = async (signal) => {
    const [sales, log] = await Promise.all([
      getAll("sales", "sales", signal),
      orNull(get("verbs?limit=500", signal)),
    ]);
    return { sales, verbs: log?.verbs ?? [] };
  };
  const { answer, error } = usePolled(read, "sales");
  const all = answer?.sales ?? [];
  const one = values.sale && all.filter((sale) => sale.sale_id === values.sale);
  const shown = one || [...all].reverse();
  const last = (sale) => answer.verbs.find((verb) => verb.subject === `sale:${sale.sale_id}`);
  return html`<${Fault} error=${error} />${
      answer &&
      shown.length === 0 &&
      html`<p>
        ${one ? "There is no such sale." : "No sale yet. "}
        ${!one && html`<code>floodgate sale create FILE</code> creates one.`}
      </p>`
    }
    ${one && html`<p><${Link} to=${{ view: "sales" }}>all sales<//></p>`}
    ${shown.map(
      (sale) =>
        html`<${One}
          key=${sale.sale_id}
          sale=${sale}
          last=${last(sale)}
          isAlone=${Boolean(one)}
        />`,
    )}`;
}

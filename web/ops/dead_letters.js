// Dead letters: messages with accepted requests that no consumer could turn into orders.

import { html } from "./htm-preact.min.js";
import { get, post, serverNow, withQuery } from "./api.js";
import { Bulk } from "./bulk.js";
import { History } from "./history.js";
import { Fault, Link, State, Table, Time, Verbs, count, money, since } from "./parts.js";
import { go, usePath, usePolled } from "./state.js";

const STATES = ["", "open", "parked", "replayed", "discarded"];
const ORIGINS = ["", "relay", "consumer", "broker"];
const TONES = { open: "bad", parked: "warn" };

const AGES = [
  ["", "any time"],
  ["<3600", "within 1 h"],
  [">600", "over 10 min"],
  [">3600", "over 1 h"],
  [">86400", "over 1 day"],
];

function Choice({ label, name, options, values, search }) {
  const choose = (event) => search(event.target.form);
  return html`<label
    >${label}
    <select name=${name} onChange=${choose} value=${values[name] ?? ""}>
      ${options.map(([id, text]) => html`<option key=${id} value=${id}>${text}</option>`)}
    </select></label
  >`;
}

const named = (names) => names.map((name) => [name, name || "all"]);

/** The conditions of the address, as the server takes them. */
function queryOf({ state, origin, reason, sale, sku, request, buyer, age }) {
  const seconds = AGES.some(([known]) => known === age) ? Number(age.slice(1)) : 0;
  const at = seconds ? new Date(serverNow() - seconds * 1000).toISOString() : "";
  const query = {
    state,
    origin,
    reason,
    sale_id: sale,
    sku_id: sale ? sku : "",
    request_id: request,
    buyer_id: buyer,
    since: age?.startsWith("<") ? at : "",
    until: age?.startsWith(">") ? at : "",
  };
  return Object.fromEntries(Object.entries(query).filter(([, value]) => value));
}

const TEXTS = [
  ["reason", "Reason has"],
  ["request", "Request"],
  ["buyer", "Buyer"],
];

function Filters({ values, sales }) {
  // A choice takes along what was typed: the fields go on showing it.
  const search = (form) => {
    const shown = [...new FormData(form)].map(([name, value]) => [name, value.trim()]);
    const next = { ...values, cursor: "", ...Object.fromEntries(shown) };
    // A SKU is of its sale.
    if (next.sale !== (values.sale ?? "")) next.sku = "";
    go(next);
  };
  const choice = { values, search };
  const sale = sales.find((one) => one.sale_id === values.sale);
  const skus = [["", "all"], ...(sale?.skus ?? []).map((sku) => [sku.sku_id, sku.sku_id])];
  const ids = [["", "all"], ...sales.map((one) => [one.sale_id, one.sale_id])];
  return html`<form
    class="filters"
    onSubmit=${(event) => {
      event.preventDefault();
      search(event.target);
    }}
  >
    <${Choice} label="State" name="state" options=${named(STATES)} ...${choice} />
    <${Choice} label="From" name="origin" options=${named(ORIGINS)} ...${choice} />
    <${Choice} label="Sale" name="sale" options=${ids} ...${choice} />
    ${sale && html`<${Choice} label="SKU" name="sku" options=${skus} ...${choice} />`}
    <${Choice} label="Dead" name="age" options=${AGES} ...${choice} />
    ${TEXTS.map(
      ([name, label]) =>
        html`<label key=${`${name} ${values[name] ?? ""}`}
          >${label} <input name=${name} size="12" defaultValue=${values[name] ?? ""}
        /></label>`,
    )}
    <button class="plain">Search</button>
  </form>`;
}

function List({ values, sales }) {
  const { cursor } = values;
  const read = async (signal) => {
    const query = queryOf(values);
    const page = await get(withQuery("dead-letters", { ...query, cursor, limit: 50 }), signal);
    return { ...page, query };
  };
  const { answer, error } = usePolled(read, `dead letters ${JSON.stringify(values)}`);
  const rows = (answer?.dead_letters ?? []).map(
    (deadLetter) =>
      html`<tr key=${deadLetter.id}>
        <th scope="row">
          <${Link} to=${{ view: "dead-letters", id: deadLetter.id }}>${deadLetter.id}<//>
        </th>
        <td><${State} name=${deadLetter.state} tone=${TONES[deadLetter.state]} /></td>
        <td>${deadLetter.origin}</td>
        <td class="reason" title=${deadLetter.reason}>${deadLetter.reason}</td>
        <td class="number">${deadLetter.attempts}</td>
        <td class="number">${deadLetter.arrivals}</td>
        <td class="nowrap">${since(deadLetter.dead_at)} ago</td>
      </tr>`,
  );
  const counts = Object.entries(answer?.counts ?? {}).map(([name, n]) => `${count(n)} ${name}`);
  const older = answer?.next_cursor;
  return html`<${Filters} values=${values} sales=${sales} />
    <${Fault} error=${error} />
    ${
      answer &&
      html`<p class="quiet">
          ${`${count(answer.num_matching)} ${cursor ? "from here on" : "match"}; `}
          ${`of all: ${counts.join(", ")}`}
        </p>
        ${answer.unreadable.map(
          ({ id, reason }) => html`<p key=${id}>${`Dead letter ${id}: ${reason}`}</p>`,
        )}
        <${Bulk} query=${answer.query} matching=${answer.num_matching} isOffered=${!cursor} />
        <${Table}
          caption="dead letters, newest first"
          rows=${rows}
          empty="No dead letter here."
          head=${["Dead letter", "State", "From", "Reason", "#Attempts", "#Arrivals", "Dead since"]}
        />`
    }
    <p class="pages">
      ${cursor && html`<${Link} to=${{ ...values, cursor: "" }}>newest<//>`}
      ${older && html`<${Link} to=${{ ...values, cursor: older }}>older<//>`}
    </p>`;
}

function Decide({ deadLetter }) {
  const isWaiting = deadLetter.state === "open" || deadLetter.state === "parked";
  const path = `dead-letters/${deadLetter.id}`;
  // What was published may be dead again already.
  const isBack = (answer) => answer.done === "published" && answer.dead_letter.state !== "replayed";
  const says = (answer) => {
    const { done, trace } = answer;
    if (!isBack(answer)) return { says: done, trace };
    return { says: `published, and it is ${answer.dead_letter.state} again`, trace, tone: "bad" };
  };
  const num = deadLetter.requests.length;
  const requests = `${num} accepted ${num === 1 ? "request" : "requests"}`;
  const verbs = [
    {
      isOffered: isWaiting && deadLetter.replayable,
      name: "Replay",
      title: `Replay dead letter ${deadLetter.id}?`,
      effect:
        `Its message with ${requests} is published once more. ` +
        "A request that is an order already stays as it is.",
      run: () => post(`${path}/replay`).then(says),
    },
    {
      isOffered: deadLetter.state === "open",
      name: "Park",
      title: `Park dead letter ${deadLetter.id}?`,
      withReason: true,
      effect: "It stays as it is and no longer counts as open.",
      run: (reason) => post(`${path}/park`, { reason }).then(says),
    },
    {
      isOffered: isWaiting,
      name: "Discard",
      tone: "bad",
      title: `Discard dead letter ${deadLetter.id}?`,
      phrase: deadLetter.id,
      withReason: true,
      effect:
        num > 0
          ? `Its ${requests} fail for good: the buyers read failed, ` +
            "and the units are on sale again."
          : "No request is read from it: look at its bytes first. A report of a payment is money.",
      run: (reason) => post(`${path}/discard`, { reason }).then(says),
    },
  ];
  return html`<${Verbs} verbs=${verbs} />`;
}

function One({ id, sales }) {
  const { answer: deadLetter, error } = usePath(`dead-letters/${encodeURIComponent(id)}`);
  const back = html`<p><${Link} to=${{ view: "dead-letters" }}>all dead letters<//></p>`;
  if (!deadLetter) return html`${back}<${Fault} error=${error} />`;
  const { preview, body_bytes: length } = deadLetter;
  const amount = (intent) => {
    const sale = sales.find((one) => one.sale_id === intent.sale_id);
    if (sale) return money(intent.amount, sale.currency);
    return `${count(intent.amount)}, currency not known`;
  };
  const rows = deadLetter.intents.map(
    (intent) =>
      html`<tr key=${intent.request}>
        <th scope="row">
          <${Link} to=${{ view: "trace", id: intent.request }}>${intent.request}<//>
        </th>
        <td>${intent.sale_id ?? "not in the catalog"}</td>
        <td>${intent.sku_id ?? intent.sku_no}</td>
        <td>${intent.buyer_id}</td>
        <td class="number">${intent.quantity}</td>
        <td class="number">${amount(intent)}</td>
        <td><${Time} at=${intent.placed_at} /></td>
      </tr>`,
  );
  return html`${back}<${Fault} error=${error} />
    <article class="card">
      <header>
        <h2>
          Dead letter ${deadLetter.id}${" "}
          <${State} name=${deadLetter.state} tone=${TONES[deadLetter.state]} />
        </h2>
        <p><b>${deadLetter.reason}</b></p>
        <p class="quiet">
          ${`from the ${deadLetter.origin}, ${deadLetter.attempts} attempts, `}
          ${`arrived ${deadLetter.arrivals} times, last `}
          <${Time} at=${deadLetter.dead_at} />${` UTC, message ${deadLetter.message_id}`}
        </p>
        ${deadLetter.note && html`<p>${deadLetter.note}</p>`}
        ${deadLetter.why_not && html`<p>It cannot be replayed: ${deadLetter.why_not}</p>`}
      </header>
      <${Decide} deadLetter=${deadLetter} />
      <${Table}
        caption="requests in the message"
        rows=${rows}
        empty="No readable request is in the message."
        head=${["Request", "Sale", "SKU", "Buyer", "#Quantity", "#Amount", "Placed (UTC)"]}
      />
      <h3>Who decided</h3>
      <${History} subject=${`dead_letter:${deadLetter.id}`} />
      <details>
        <summary>Headers and body</summary>
        <pre>${JSON.stringify(deadLetter.headers, null, 2)}</pre>
        <pre>
${preview}${length > 64 ? " ..." : ""} (${count(length)} bytes)</pre>
      </details>
    </article>`;
}

export const DeadLetters = ({ values, sales }) =>
  values.id
    ? html`<${One} key=${values.id} id=${values.id} sales=${sales} />`
    : html`<${List} values=${values} sales=${sales} />`;

// Where is this order? Every stage that has a record of a request.

import { html, useEffect, useState } from "./htm-preact.min.js";
import { Fault, Link, State, Time, age } from "./parts.js";
import { usePath, visit } from "./state.js";

const TONES = {
  queued: "warn",
  unknown: "warn",
  open: "bad",
  parked: "bad",
  failed: "bad",
  discarded: "bad",
};

function Stages({ trace }) {
  const rows = trace.stages.map((stage, no) => {
    const id = stage.dead_letter_id;
    return html`<li key=${no} class="step">
      <b>${stage.stage.replace("_", " ")}</b> ${`${stage.says} `}<${State}
        name=${stage.state}
        tone=${TONES[stage.state]}
      />
      ${stage.reason && html`<span> ${stage.reason}</span>`}
      ${
        id
          ? html` <${Link} to=${{ view: "dead-letters", id }}>${stage.holder}<//>`
          : stage.holder && html`<span class="quiet"> ${stage.holder}</span>`
      }
      ${stage.at && html`<span class="quiet"> <${Time} at=${stage.at} /> UTC</span>`}
    </li>`;
  });
  return html`<ol class="steps">
    ${rows}
  </ol>`;
}

function whose({ buyer_id: buyer, sale_id: sale, sku_id: sku, took_ms: took }) {
  const known = { buyer, sale, SKU: sku };
  const words = Object.entries(known).map(([name, value]) => `${name} ${value ?? "not known"}`);
  if (took !== null) words.push(`${age(took)} from click to ledger`);
  return words.join(", ");
}

function Found({ id }) {
  const path = `requests/${encodeURIComponent(id)}/trace`;
  const { answer: trace, error } = usePath(path);
  if (!trace) return html`<${Fault} error=${error} />`;
  return html`<${Fault} error=${error} />
    <article class="card">
      <h2>Request ${trace.request}</h2>
      <p class="quiet">
        ${whose(trace)}${trace.trace_id && html`, trace <code>${trace.trace_id}</code>`}
      </p>
      <${Stages} trace=${trace} />
      <p>${trace.next}</p>
    </article>`;
}

export function Trace({ values }) {
  const [typed, setTyped] = useState("");
  useEffect(() => setTyped(values.id ?? ""), [values.id]);
  const look = (event) => {
    event.preventDefault();
    visit({ view: "trace", id: typed.trim() });
  };
  return html`<form class="search" onSubmit=${look}>
      <label for="request">Request id or number</label>
      <input
        id="request"
        value=${typed}
        onInput=${(event) => setTyped(event.target.value)}
        autocomplete="off"
      />
      <button class="primary">Look</button>
    </form>
    ${values.id && html`<${Found} key=${values.id} id=${values.id} />`}`;
}

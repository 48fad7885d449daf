// The way of an order as a chain of stages: how much is in each, how old its oldest is, whether
// that age grows, how much comes and goes; and what stands in the way.

import { html, useRef } from "./htm-preact.min.js";
import { get, orNull, probe, serverNow } from "./api.js";
import { Charts } from "./charts.js";
import { obstacles, phaseOf } from "./diagnosis.js";
import { Fault, Link, age, count } from "./parts.js";
import { usePolled } from "./state.js";

const WORDS = {
  left: ["Units left", "on sale in the buckets, as the ledger counts them"],
  unsettled: ["Accepted", "the gate has them, the ledger has no result yet"],
  outbox: ["Outbox", "written with the reservation, not published"],
  relay: ["Relay", "claimed by a worker"],
  broker: ["Broker", "in the queues of the consumers"],
  dead: ["Dead", "given up by a relay or a consumer, not yet in the ledger"],
  committed: ["Orders", "rows of the ledger"],
  failed: ["Failed", "refused after acceptance, with a reason"],
};
const ENDS = ["left", "committed", "failed"];

/** Answers of the funnel that rates and growth are computed from. */
const KEPT = 8;

/** The last answers with different times, oldest first. */
function useLast(answer, at) {
  const seen = useRef([]);
  if (at && seen.current.at(-1)?.at !== at) {
    const counts = Object.fromEntries(answer.stages.map((one) => [one.stage, one.count]));
    const aged = answer.stages.map((one) => [one.stage, one.oldest_age_ms ?? 0]);
    const ages = Object.fromEntries(aged);
    seen.current = [...seen.current, { at, counts, ages }].slice(-KEPT);
  }
  return seen.current;
}

/** The stages whose oldest age grew in each of the last three samples. */
function growingStages(seen) {
  const last = seen.slice(-4);
  if (last.length < 4) return [];
  const grows = (stage) =>
    last.every((sample, no) => no === 0 || sample.ages[stage] > last[no - 1].ages[stage]);
  return Object.keys(last[0].ages).filter(grows);
}

/**
 * What came into a stage and went out of it, per second, as the counts of the stores tell: an
 * accepted request is unsettled until it is an order or a failure.
 */
function rates(seen) {
  const [first, last] = [seen[0], seen.at(-1)];
  if (seen.length < 2) return {};
  const grown = (stages) => {
    const sum = ({ counts }) => stages.reduce((total, stage) => total + (counts[stage] ?? NaN), 0);
    return ((sum(last) - sum(first)) * 1000) / (last.at - first.at);
  };
  return {
    left: { out: -grown(["left"]) },
    unsettled: {
      in: grown(["unsettled", "committed", "failed"]),
      out: grown(["committed", "failed"]),
    },
    committed: { in: grown(["committed"]) },
    failed: { in: grown(["failed"]) },
  };
}

function Rates({ rate }) {
  const shown = Object.entries(rate ?? {}).filter(([, value]) => Number.isFinite(value));
  if (shown.length === 0) return null;
  const text = ([way, value]) => `${count(Math.max(0, Math.round(value * 10) / 10))}/s ${way}`;
  return html`<span class="stage-note">${shown.map(text).join(", ")}</span>`;
}

function Stage({ stage, count: found, unit, oldest_age_ms: oldest, isGrowing, rate }) {
  const [name, meaning] = WORDS[stage] ?? [stage, ""];
  const isDead = stage === "dead" && found > 0;
  const tone =
    found === null ? "unknown" : isDead || isGrowing ? "bad" : ENDS.includes(stage) ? "end" : "";
  const note =
    found === null
      ? "its store does not answer"
      : oldest === null
        ? unit
        : `${unit}, oldest ${age(oldest)}${isGrowing ? ", growing" : ""}`;
  return html`<li class="stage" data-tone=${tone} title=${meaning}>
    <span class="stage-name">${name}</span>
    <span class="stage-count">${count(found)}</span>
    <span class="stage-note">${note}</span>
    <${Rates} rate=${rate} />
  </li>`;
}

/** What an operator has to look at, each with its place. */
function Attention({ found }) {
  const rows = found.map(
    ({ text, to, tone }) =>
      html`<li key=${text} data-tone=${tone}>
        ${to ? html`<${Link} to=${to}>${text}<//>` : text}
      </li>`,
  );
  return html`<section>
    <h2>What stands in the way</h2>
    ${
      rows.length > 0
        ? html`<ul class="attention">
            ${rows}
          </ul>`
        : html`<p class="quiet">
            Nothing: every store answers, every actor of this process runs, no dead letter is open.
          </p>`
    }
  </section>`;
}

/** Everything about a sale that the overview shows; what does not answer is left out. */
async function readOverview(sale, signal) {
  const [funnel, actors, deadLetters, ready] = await Promise.all([
    get(`sales/${encodeURIComponent(sale)}/funnel`, signal),
    orNull(get("actors", signal)),
    orNull(get("dead-letters?limit=1", signal)),
    orNull(probe(signal)),
  ]);
  return { ...funnel, actors: actors?.actors, counts: deadLetters?.counts, checks: ready?.checks };
}

function Flow({ sale }) {
  const id = sale.sale_id;
  const { answer, error, at } = usePolled((signal) => readOverview(id, signal), `flow ${id}`);
  const seen = useLast(answer, at);
  const growing = growingStages(seen);
  const flow = rates(seen);
  const found = obstacles({ ...answer, sale, growing, now: serverNow() });
  const stages = (answer?.stages ?? []).map(
    (stage) =>
      html`<${Stage}
        key=${stage.stage}
        ...${stage}
        isGrowing=${growing.includes(stage.stage)}
        rate=${flow[stage.stage]}
      />`,
  );
  return html`<section>
      <h2>From click to ledger</h2>
      <${Fault} error=${error} />
      <ol class="chain" aria-label="stages in the order of the flow">
        ${stages}
      </ol>
    </section>
    ${answer && !error && html`<${Attention} found=${found} />`}`;
}

export function Overview({ sales, sale }) {
  // A sale that ends stays shown.
  const shown = useRef(null);
  const chosen =
    sales.find((one) => one.sale_id === (sale ?? shown.current)) ??
    sales.find((one) => phaseOf(one, serverNow()) === "open") ??
    sales.at(-1);
  shown.current = chosen?.sale_id;
  if (sale && chosen?.sale_id !== sale) return html`<p>There is no sale <code>${sale}</code>.</p>`;
  if (!chosen)
    return html`<p>No sale yet. <code>floodgate sale create FILE</code> creates one.</p>`;
  const choices = sales.map(
    (one) =>
      html`<li key=${one.sale_id}>
        <${Link}
          to=${{ view: "overview", sale: one.sale_id }}
          aria-current=${one === chosen ? "true" : null}
        >
          ${one.sale_id} <span class="quiet">${phaseOf(one, serverNow())}</span><//
        >
      </li>`,
  );
  return html`<ul class="tabs" aria-label="sales">
      ${choices}
    </ul>
    <${Flow} key=${chosen.sale_id} sale=${chosen} />
    <${Charts} />`;
}

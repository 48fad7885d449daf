// The last hour of this process. Each chart has its numbers beside it, for those who cannot see it.

import { html, useEffect, useRef, useState } from "./htm-preact.min.js";
import { get } from "./api.js";
import { clock, count } from "./parts.js";
import { usePolled } from "./state.js";

const CHARTS = [
  { title: "Purchases per second", series: ["accepted", "sold_out", "limited", "busy"] },
  { title: "Orders per second", series: ["published", "delivered", "ordered", "timed_out"] },
  { title: "Waiting", series: ["in_outbox", "in_relay", "in_gates", "in_writer"] },
  {
    title: "After the order, waiting",
    series: ["changes_waiting", "events_waiting", "payments_in_doubt"],
  },
];
const WORDS = {
  accepted: "accepted",
  sold_out: "sold out",
  limited: "limit of the buyer",
  busy: "busy",
  published: "published",
  delivered: "delivered",
  ordered: "in the ledger",
  timed_out: "timed out",
  in_outbox: "outbox",
  in_relay: "relay",
  in_gates: "gates",
  in_writer: "ledger writer",
  changes_waiting: "returns to stock",
  events_waiting: "events out",
  payments_in_doubt: "payments in doubt",
};
const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4"];
const HOUR_MS = 3_600_000;

/** All samples of the last hour; each poll asks for the new ones only. */
function useHistory() {
  const kept = useRef({ series: [], samples: [] });
  return usePolled(async (signal) => {
    const last = kept.current.samples.at(-1);
    const since = last ? `?since=${last.at}` : "";
    const { series, samples, every_ms: every } = await get(`series${since}`, signal);
    const news = samples.map((sample) => ({ ...sample, at_ms: Date.parse(sample.at) }));
    const all = [...kept.current.samples, ...news];
    const from = (all.at(-1)?.at_ms ?? 0) - HOUR_MS;
    kept.current = { every, series, samples: all.filter((sample) => sample.at_ms > from) };
    return kept.current;
  }, "series");
}

/** The points of one series: a counter as its rate, without a value where the process restarted. */
export function points({ series, samples }, name) {
  const at = series.findIndex((one) => one.name === name);
  if (at < 0) return samples.map(() => null);
  if (series[at].kind === "gauge") return samples.map((sample) => sample.values[at]);
  return samples.map((sample, no) => {
    const before = samples[no - 1];
    const grown = before ? sample.values[at] - before.values[at] : -1;
    return grown < 0 ? null : (grown * 1000) / (sample.at_ms - before.at_ms);
  });
}

function draw(place, names, history) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--quiet"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  const lines = names.map((name, no) => ({
    label: WORDS[name],
    stroke: colour(COLOURS[no]),
    width: 1.5,
    spanGaps: false,
  }));
  const values = (_, ats) => ats.map((at) => clock(at * 1000));
  const times = { ...axis, size: 30, space: 80, values };
  const options = {
    width: place.clientWidth,
    height: 180,
    legend: { show: false },
    cursor: { y: false },
    axes: [times, { ...axis, size: 60 }],
    series: [{}, ...lines],
    scales: { y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
  };
  return new window.uPlot(options, data(names, history), place);
}

const data = (names, history) => [
  history.samples.map((sample) => sample.at_ms / 1000),
  ...names.map((name) => points(history, name)),
];

function Chart({ title, series: names, history, at }) {
  const place = useRef(null);
  const chart = useRef(null);
  useEffect(() => {
    if (!chart.current) chart.current = draw(place.current, names, history);
    else chart.current.setData(data(names, history));
  }, [at]);
  useEffect(() => {
    const fit = () => chart.current?.setSize({ width: place.current.clientWidth, height: 180 });
    addEventListener("resize", fit);
    return () => {
      removeEventListener("resize", fit);
      chart.current?.destroy();
    };
  }, []);
  const now = names.map((name, no) => {
    const last = points(history, name).at(-1);
    return html`<li key=${name}>
      <span class="swatch" data-line=${no + 1}></span>${WORDS[name]}
      <b>${last === null || last === undefined ? "no value" : count(Math.round(last))}</b>
    </li>`;
  });
  return html`<figure>
    <figcaption>${title}</figcaption>
    <div ref=${place} aria-hidden="true"></div>
    <ul class="legend" aria-label=${`${title}, now`}>
      ${now}
    </ul>
  </figure>`;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

export function Charts() {
  const [isShown, setShown] = useState(true);
  const [isDark, setDark] = useState(dark.matches);
  useEffect(() => {
    const change = () => setDark(dark.matches);
    dark.addEventListener("change", change);
    return () => dark.removeEventListener("change", change);
  }, []);
  const { answer: history, at } = useHistory();
  const hide = html`<button
    class="plain"
    aria-expanded=${isShown}
    onClick=${() => setShown(!isShown)}
  >
    ${isShown ? "Hide" : "Show"}
  </button>`;
  const charts =
    isShown &&
    history &&
    CHARTS.map(
      (chart) =>
        // A drawn chart keeps its colours.
        html`<${Chart}
          key=${`${chart.title} ${isDark}`}
          ...${chart}
          history=${history}
          at=${at}
        />`,
    );
  return html`<section>
    <h2>The last hour of this process <span class="quiet">times in UTC</span> ${hide}</h2>
    <div class="charts">${charts}</div>
  </section>`;
}

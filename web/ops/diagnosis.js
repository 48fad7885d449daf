// Why do no orders arrive? What the stores, the actors and the sale itself say, in plain words. A
// pure function: the overview gives it what it has read.

import { age, count } from "./parts.js";

/** An accepted request that waits longer than this is late, as the audit judges it. */
const LATE_MS = 30_000;
/** An entry that waits longer than this in the outbox is not being published. */
const UNPUBLISHED_MS = 10_000;
/** The store that a stage without a count could not read. */
const STORE = {
  left: "The ledger",
  unsettled: "The stock in the buckets",
  outbox: "The outbox",
  broker: "The broker",
};

const queues = (num) =>
  num === 1 ? "1 queue of orders has" : `${count(num)} queues of orders have`;

/** The phase, and of an open sale whether its window says otherwise. */
export function phaseOf({ phase, starts_at: start, ends_at: end }, now) {
  if (phase !== "open") return phase;
  if (now < Date.parse(start)) return "open, not begun";
  return now < Date.parse(end) ? "open" : "open, over";
}

function ofSale(sale, now) {
  const words = {
    draft: "The sale was never opened.",
    paused: "The sale is paused: it accepts nothing.",
    closed: "The sale is closed: it accepts nothing.",
    "open, not begun": `The sale starts in ${age(Date.parse(sale.starts_at) - now)}.`,
    "open, over": "The sale has ended.",
  };
  const text = words[phaseOf(sale, now)];
  return text ? [{ text, to: { view: "sales", sale: sale.sale_id } }] : [];
}

function ofStages(stages, growing) {
  const by = Object.fromEntries(stages.map((stage) => [stage.stage, stage]));
  const found = [];
  const add = (text, rest) => found.push({ text, tone: "bad", ...rest });
  for (const [stage, store] of Object.entries(STORE)) {
    if (by[stage] && by[stage].count === null) add(`${store} does not answer.`);
  }
  const unconsumed = by.broker?.unconsumed_queues ?? 0;
  if (unconsumed > 0) {
    add(
      `${queues(unconsumed)} no consumer: their orders are not written. ` +
        "Start a process of role consumer; if one runs, its actors tell what it waits for.",
      { to: { view: "actors" } },
    );
  }
  if ((by.outbox?.oldest_age_ms ?? 0) > UNPUBLISHED_MS) {
    add(
      `Accepted requests wait for ${age(by.outbox.oldest_age_ms)} to be published: ` +
        "no relay runs, or the broker takes no messages.",
      { to: { view: "actors" } },
    );
  }
  const waits = by.unsettled?.oldest_age_ms ?? 0;
  if (waits > LATE_MS || growing.includes("unsettled")) {
    add(`The oldest accepted request has no result for ${age(waits)}.`);
  }
  if (by.left?.count === 0) found.push({ text: "Every unit is ordered or reserved." });
  return found;
}

function ofActors(actors) {
  const down = (actors ?? []).filter((actor) => actor.state !== "up");
  if (down.length === 0) return [];
  const names = down.map((actor) => actor.name).join(", ");
  const subject = down.length === 1 ? "1 actor does" : `${down.length} actors do`;
  return [{ text: `${subject} not run: ${names}.`, to: { view: "actors" }, tone: "bad" }];
}

function ofLetters(counts) {
  const open = counts?.open ?? 0;
  if (open === 0) return [];
  const subject = open === 1 ? "1 dead letter waits" : `${count(open)} dead letters wait`;
  const to = { view: "dead-letters", state: "open" };
  return [{ text: `${subject} for an operator.`, to, tone: "bad" }];
}

function ofChecks(checks) {
  const words = { ledger: "The ledger", stock: "The stock in the buckets" };
  const failed = (checks ?? []).filter((check) => !check.ok && words[check.name]);
  return failed.map((check) => ({
    text: `${words[check.name]} does not answer this process.`,
    tone: "bad",
  }));
}

/** What could not be read is not known to be well. */
const ofUnread = (read) =>
  Object.entries(read)
    .filter(([, answer]) => !answer)
    .map(([what]) => ({ text: `${what} could not be read.`, tone: "bad" }));

/** What stands between a click and its order: `[{text, to?, tone?}]`, the gravest first. */
export function obstacles({ sale, stages, growing, actors, counts, checks, now }) {
  const all = [
    ...ofChecks(checks),
    ...ofStages(stages ?? [], growing ?? []),
    ...ofActors(actors),
    ...ofLetters(counts),
    ...ofUnread({ Readiness: checks, "The list of actors": actors, "Dead letters": counts }),
    ...(sale ? ofSale(sale, now) : []),
  ];
  const grave = (one) => Number(one.tone === "bad");
  return all.sort((one, other) => grave(other) - grave(one));
}

// One verb on every dead letter that the filter matches, in steps of the server.

import { html } from "./htm-preact.min.js";
import { CallError, access, post } from "./api.js";
import { Verbs, count } from "./parts.js";

const STEP = 50;
/** Different reasons that are shown. */
const REASONS = 3;

/**
 * Runs the steps until none is left; each tells how many the next one has to find. A step that
 * fails ends them, and the answer says what those before have done.
 */
async function steps(verb, query, matching, reason) {
  let [expected, cursor, trace] = [matching, undefined, ""];
  const sums = { done: 0, already: 0, refused: 0 };
  const reasons = new Set();
  const counts = () => {
    const found = Object.entries(sums).filter(([, num]) => num > 0);
    return found.map(([name, num]) => `${count(num)} ${name}`).join(", ");
  };
  try {
    do {
      const filter = { ...query, cursor };
      const body = { filter, expected_count: expected, max: STEP, reason };
      const step = await post(`dead-letters/${verb}`, body);
      for (const one of step.dead_letters) {
        if (one.refused) reasons.add(one.refused);
        sums[one.refused ? "refused" : one.done === "already" ? "already" : "done"] += 1;
      }
      [expected, cursor, trace] = [step.num_left, step.next_cursor, step.trace];
      if (step.stopped) throw new CallError("stopped", step.stopped, { trace });
    } while (cursor);
  } catch (error) {
    const says = `stopped after ${counts() || "none"}: ${error.message} (${error.code})`;
    return { says, trace: error.trace, tone: "bad" };
  }
  if (reasons.size === 0) return { says: counts(), trace };
  const why = [...reasons].slice(0, REASONS).join("; ");
  return { says: `${counts()}: ${why}${reasons.size > REASONS ? "; .." : ""}`, trace, tone: "bad" };
}

const EFFECTS = {
  replay: "Their messages are published once more; requests that are orders stay as they are.",
  park: "They stay as they are and no longer count as open.",
  discard: "Their requests fail for good: buyers read failed, the units are on sale again.",
};

/** The filter as a person reads it. */
const words = (query) =>
  Object.entries(query)
    .map(([name, value]) => `${name.replace("_id", "")} ${value}`)
    .join(", ");

/** Stays while nothing is offered: so does the answer of the last verb. */
export function Bulk({ query, matching, isOffered }) {
  const replay = access.hasBroker ? ["replay"] : [];
  const offered = { open: [...replay, "park", "discard"], parked: [...replay, "discard"] };
  const names = isOffered && matching > 0 ? (offered[query.state] ?? []) : [];
  const verbs = ["replay", "park", "discard"].map((verb) => {
    const name = `${verb[0].toUpperCase()}${verb.slice(1)} all ${count(matching)}`;
    return {
      isOffered: names.includes(verb),
      name,
      tone: verb === "discard" ? "bad" : null,
      title: `${name}?`,
      effect: `All dead letters with ${words(query)}. ${EFFECTS[verb]}`,
      phrase: `${verb} ${matching}`,
      withReason: true,
      run: (reason) => steps(verb, query, matching, reason),
    };
  });
  return html`<${Verbs} verbs=${verbs} />`;
}

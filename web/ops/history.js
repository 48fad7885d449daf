// Who changed something, when and why: the verbs of operators, newest first.

import { html } from "./htm-preact.min.js";
import { withQuery } from "./api.js";
import { Fault, Link, Table, Time, since } from "./parts.js";
import { usePath } from "./state.js";

const DONE = {
  create: "created",
  open: "opened",
  pause: "paused",
  close: "closed",
  change: "changed",
  stock: "restocked",
  rebuild: "rebuilt",
  replay: "replayed",
  park: "parked",
  discard: "discarded",
  resolve: "resolved",
  archive: "archived",
  purge: "purged",
};

/** One verb as a sentence. */
export function Last({ verb }) {
  if (!verb) return null;
  return html`<p class="last">
    ${DONE[verb.verb] ?? verb.verb} by <b>${verb.operator}</b>
    ${verb.detail ? ` (${verb.detail})` : ""}
    <span class="quiet"> ${since(verb.at)} ago</span>${verb.reason ? `: ${verb.reason}` : ""}
  </p>`;
}

/** The place of a subject on this page. */
function place(subject) {
  const at = subject.indexOf(":");
  const [kind, id] = [subject.slice(0, at), subject.slice(at + 1)];
  return { sale: { view: "sales", sale: id }, dead_letter: { view: "dead-letters", id } }[kind];
}

function Subject({ subject }) {
  const to = place(subject);
  return to ? html`<${Link} to=${to}>${subject}<//>` : subject;
}

/** The verbs of one subject, or of all. */
export function History({ subject, cursor, older }) {
  const { answer, error } = usePath(withQuery("verbs", { subject, cursor, limit: 50 }));
  const rows = (answer?.verbs ?? []).map(
    (verb) =>
      html`<tr key=${verb.verb_id}>
        <td><${Time} at=${verb.at} /></td>
        ${!subject && html`<td><${Subject} subject=${verb.subject} /></td>`}
        <th scope="row">${verb.verb}</th>
        <td class="words">${verb.detail ?? ""}</td>
        <td>${verb.operator}</td>
        <td class="words">${verb.reason ?? ""}</td>
      </tr>`,
  );
  const head = ["At (UTC)", ...(subject ? [] : ["Of"]), "Verb", "What", "By", "Why"];
  return html`<${Fault} error=${error} />${
    answer &&
    html`<${Table}
      caption="verbs of operators, newest first"
      rows=${rows}
      empty="No operator has changed it."
      head=${head}
    />`
  }${
    older &&
    answer?.next_cursor &&
    html`<p class="pages"><${Link} to=${{ ...older, cursor: answer.next_cursor }}>older<//></p>`
  }`;
}

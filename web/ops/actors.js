// The supervised actors of this process.

import { html } from "./htm-preact.min.js";
import { Fault, State, Table, count } from "./parts.js";
import { usePath } from "./state.js";

export function Actors() {
  const { answer, error } = usePath("actors");
  const actors = [...(answer?.actors ?? [])];
  actors.sort(
    (one, other) =>
      Number(one.state === "up") - Number(other.state === "up") ||
      other.restarts - one.restarts ||
      one.name.localeCompare(other.name, "en", { numeric: true }),
  );
  const rows = actors.map(
    (actor) =>
      html`<tr key=${actor.name}>
        <th scope="row">${actor.name}</th>
        <td><${State} name=${actor.state} tone=${actor.state === "up" ? "good" : "bad"} /></td>
        <td class="number">${count(actor.restarts)}</td>
        <td class="number">${count(actor.panics)}</td>
        <td class="number">${count(actor.stalls)}</td>
        <td class="number">${count(actor.steps)}</td>
        <td>${actor.last_exit ?? ""}</td>
      </tr>`,
  );
  return html`<${Fault} error=${error} />${
      answer &&
      html`<p class="quiet">
          Those that do not run come first, then those that were restarted most.
        </p>
        <${Table}
          caption="actors"
          rows=${rows}
          empty="no actor"
          head=${["Actor", "State", "#Restarts", "#Panics", "#Stalls", "#Steps", "Last exit"]}
        />`
    }`;
}

// Do the invariants hold, how does the audit know, and what would a repair do?

import { html, useState } from "./htm-preact.min.js";
import { post } from "./api.js";
import { Fault, State, Table, Time, Verbs, count, since } from "./parts.js";
import { usePath } from "./state.js";

function Report({ report }) {
  const verdict = !report.could_tell
    ? ["could not tell", "warn"]
    : report.holds
      ? ["holds", "good"]
      : ["violated", "bad"];
  const judged = report.judged.map(
    (basis) =>
      html`<tr key=${basis.invariant}>
        <th scope="row">${basis.invariant}</th>
        <td>
          ${
            basis.num_violations > 0
              ? html`<${State} name="violated" tone="bad" />`
              : html`<${State} name="holds" tone="good" />`
          }
        </td>
        <td class="number">${count(basis.num_violations)}</td>
        <td>${basis.evidence}</td>
      </tr>`,
  );
  const violations = report.violations.map(
    (one, no) =>
      html`<li key=${no} data-tone="bad"><b>${one.invariant}</b>${` ${one.detail}`}</li>`,
  );
  return html`<article class="card">
    <h2>The audit <${State} name=${verdict[0]} tone=${verdict[1]} /></h2>
    <p class="quiet">
      ${
        `${count(report.num_orders)} orders, ` +
        `${count(report.num_dead_letters)} open or parked dead letters, ` +
        `${count(report.num_unmatched_reports)} unmatched payment reports ` +
        `(${count(report.num_resolved_reports)} resolved), ` +
        `${since(report.checked_at)} ago`
      }
    </p>
    ${
      violations.length > 0 &&
      html`<ul class="attention">
        ${violations}
      </ul>`
    }
    ${
      report.num_violations > violations.length &&
      html`<p>
        ${`The first ${violations.length} of ${count(report.num_violations)} violations are shown.`}
      </p>`
    }
    ${
      report.repairs.length > 0 &&
      html`<ul class="attention">
        ${report.repairs.map(
          (one, no) =>
            html`<li key=${no}>
              <b>${one.action.replace("_", " ")}</b>: ${one.outcome ?? "planned"}: ${one.detail}
            </li>`,
        )}
      </ul>`
    }
    <${Table}
      caption="what was compared"
      rows=${judged}
      empty="nothing was judged"
      head=${["Invariant", "Result", "#Violations", "What was compared"]}
    />
    ${report.notes.map((note) => html`<p key=${note} class="quiet">${note}</p>`)}
  </article>`;
}

/** What audits and the reconciler repaired, or could not repair. */
function Repairs() {
  const { answer, error } = usePath("repairs?limit=50");
  const rows = (answer?.repairs ?? []).map(
    (repair) =>
      html`<tr key=${repair.repair_id}>
        <td><${Time} at=${repair.at} /></td>
        <td>${repair.verdict.replace("_", " ")}</td>
        <td>${repair.action.replace("_", " ")}</td>
        <td>
          <${State}
            name=${repair.outcome.replace("_", " ")}
            tone=${repair.outcome === "compensated" ? "good" : "bad"}
          />
        </td>
        <td class="words">${repair.detail}</td>
      </tr>`,
  );
  return html`<section>
    <h2>Repairs</h2>
    <${Fault} error=${error} />
    ${
      answer &&
      html`<${Table}
        caption="repairs, newest first"
        rows=${rows}
        empty="Nothing was repaired."
        head=${["At (UTC)", "Verdict", "Action", "Outcome", "Detail"]}
      />`
    }
  </section>`;
}

export function Audit({ sales }) {
  const [state, setState] = useState({ sale: "" });
  const { sale, report, busy } = state;
  const scope = sale ? { sale_id: sale } : {};
  // A report that comes late must not stand under another sale.
  const show = (news) => setState((now) => (now.sale === sale ? { sale, ...news } : now));
  const run = async (body) => {
    if (busy) return;
    setState({ ...state, busy: true });
    try {
      show({ report: await post("audit", { ...scope, ...body }) });
    } catch (error) {
      show({ report, error });
    }
  };
  const repair = async (reason) => {
    const repaired = await post("audit", { ...scope, repair: true, reason });
    show({ report: repaired });
    return { says: `${count(repaired.repairs.length)} repairs`, trace: repaired.trace };
  };
  const verb = {
    isOffered: (report?.num_violations ?? 0) > 0,
    name: "Repair",
    tone: "bad",
    title: `Repair ${sale || "all sales"}?`,
    effect:
      "What can be repaired is, while the sale goes on; every repair is recorded. " +
      "Look first what a repair would do.",
    phrase: sale || "all sales",
    withReason: true,
    run: repair,
  };
  return html`<form
      class="search"
      onSubmit=${(event) => {
        event.preventDefault();
        run({});
      }}
    >
      <label
        >Sale
        <select value=${sale} onChange=${(event) => setState({ sale: event.target.value })}>
          <option value="">all</option>
          ${sales.map(
            ({ sale_id: id }) => html`<option key=${id} value=${id}>${id}</option>`,
          )}
        </select></label
      >
      <button class="primary" aria-disabled=${busy === true}>
        ${busy ? "Auditing" : "Audit now"}
      </button>
      <button type="button" class="plain" onClick=${() => run({ dry_run: true })}>
        What would a repair do?
      </button>
    </form>
    <p class="quiet">
      An audit reads the whole ledger and the buckets, and changes nothing; nor does the look at
      what a repair would do.
    </p>
    <${Verbs} key=${`repair ${sale}`} verbs=${[verb]} />
    <${Fault} error=${state.error} />${report && html`<${Report} report=${report} />`}
    <${Repairs} />`;
}

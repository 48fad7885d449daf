// Payments that wait for an operator, and reports of money of no known payment.

import { html, useState } from "./htm-preact.min.js";
import { post, withQuery } from "./api.js";
import { History } from "./history.js";
import { Fault, Link, Said, State, Table, Time, Verbs, money } from "./parts.js";
import { usePath } from "./state.js";

const STATES = {
  refund_failed: ["Refund failed", "The provider refused these refunds."],
  in_doubt: ["In doubt", "Their orders ended or are paid; the provider is asked every hour."],
  unmatched: ["Unmatched", "The provider reports money of a payment that the ledger lacks."],
  resolved: ["Resolved", "Unmatched reports that an operator has settled."],
  refund_due: ["Refund due", "Tried again by themselves."],
};

function Settle({ payment: { id }, state, tell }) {
  const call = (verb, body) =>
    post(`payments/${encodeURIComponent(id)}/${verb}`, body).then(({ done, trace }) => ({
      says: done.replace("_", " "),
      trace,
    }));
  const verbs = [
    {
      isOffered: state !== "resolved",
      name: "Try now",
      title: "Try it now?",
      effect:
        "The refund is made, the provider is asked, " +
        "or the payment of the report is looked for.",
      run: () => call("retry", {}),
    },
    {
      isOffered: state === "unmatched",
      name: "Resolve",
      tone: "bad",
      title: "Resolve this report?",
      effect:
        "It no longer waits, and no payment that becomes known takes its money. " +
        "Say how the money was settled.",
      phrase: id,
      withReason: true,
      run: (reason) => call("resolve", { reason }),
    },
  ];
  // The answer outlives the row, which leaves the list.
  const say = (said) => tell({ ...said, text: `${id}: ${said.text}` });
  return html`<${Verbs} verbs=${verbs} tell=${say} />`;
}

export function Payments({ values }) {
  const state = STATES[values.state] ? values.state : "refund_failed";
  const { cursor } = values;
  const [said, setSaid] = useState(null);
  const { answer, error } = usePath(withQuery("payments", { state, cursor, limit: 50 }));
  const choices = Object.entries(STATES).map(
    ([name, [title]]) =>
      html`<li key=${name}>
        <${Link}
          to=${{ view: "payments", state: name }}
          aria-current=${name === state ? "true" : null}
          >${title}<//
        >
      </li>`,
  );
  const rows = (answer?.payments ?? []).map(
    (payment) =>
      html`<tr key=${payment.id}>
        <th scope="row" class="words">${payment.id}</th>
        <td>
          ${
            payment.request_id
              ? html`<${Link} to=${{ view: "trace", id: payment.request_id }}
                  >${payment.request_id}<//
                >`
              : "not named"
          }
        </td>
        <td>${payment.order_state && html`<${State} name=${payment.order_state} />`}</td>
        <td class="number">
          ${payment.amount === undefined ? "" : money(payment.amount, payment.currency)}
        </td>
        <td class="words">
          ${[payment.payment_id, payment.reason].filter(Boolean).join(": ")}
        </td>
        <td><${Time} at=${payment.refund_at ?? payment.recorded_at} /></td>
        <td><${Settle} payment=${payment} state=${state} tell=${setSaid} /></td>
      </tr>`,
  );
  const older = answer?.next_cursor;
  return html`<ul class="tabs" aria-label="states">
      ${choices}
    </ul>
    <p class="quiet">${STATES[state][1]}</p>
    <${Fault} error=${error} />
    <${Said} said=${said} dismiss=${() => setSaid(null)} />
    ${
      answer &&
      html`<${Table}
        caption=${`payments, ${STATES[state][0]}`}
        rows=${rows}
        empty="No payment here."
        head=${["Id", "Request", "Order", "#Money", "At the provider", "At (UTC)", "Verbs"]}
      />`
    }
    ${older && html`<p><${Link} to=${{ view: "payments", state, cursor: older }}>more<//></p>`}`;
}

/** Everything that operators changed. */
export const Log = ({ values }) =>
  html`<${History} cursor=${values.cursor} older=${{ view: "log" }} />`;

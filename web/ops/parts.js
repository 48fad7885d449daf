// Small parts that all views use. Text is never markup.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./htm-preact.min.js";
import { LATE_MS, access, serverNow } from "./api.js";
import { readAgain, visit } from "./state.js";

const NUMBER = new Intl.NumberFormat("en");

/** A count, or that it is not known: never a zero that nobody counted. */
export const count = (value) =>
  value === null || value === undefined ? "not known" : NUMBER.format(value);

/** A duration in the two largest units. */
export function age(ms) {
  if (ms === null || ms === undefined) return "";
  const s = Math.floor(ms / 1000);
  if (s < 1) return `${Math.max(0, Math.round(ms))} ms`;
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** The time of day in UTC. */
export const clock = (ms) => new Date(ms).toISOString().slice(11, 19);

export const since = (iso) => (iso ? age(Math.max(0, serverNow() - Date.parse(iso))) : "");

/** Digits behind the point where they are not two (ISO 4217); those that Intl shows differ. */
const MINOR_DIGITS = {
  0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
  3: "BHD IQD JOD KWD LYD OMR TND",
  4: "CLF UYW",
};

function minorDigits(currency) {
  const found = Object.entries(MINOR_DIGITS).find(([, codes]) => codes.includes(currency));
  return found ? Number(found[0]) : 2;
}

/** Money from the currency's smallest unit. */
export function money(amount, currency) {
  const digits = minorDigits(currency);
  const exact = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  const format = new Intl.NumberFormat("en", { style: "currency", currency, ...exact });
  return format.format(amount / 10 ** digits);
}

export const Time = ({ at }) =>
  at ? html`<time datetime=${at} title=${at}>${at.slice(0, 19).replace("T", " ")}</time>` : "";

/** A link of this page. */
export function Link({ to, children, ...rest }) {
  const href = `?${new URLSearchParams(to)}`;
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button > 0) return;
    event.preventDefault();
    visit(to);
  };
  return html`<a href=${href} onClick=${follow} ...${rest}>${children}</a>`;
}

export const State = ({ name, tone }) => html`<span class="state" data-tone=${tone}>${name}</span>`;

/**
 * What a read failed with; its last answer stays on the page. The trace differs at each read, and
 * is no part of the alert, which is announced whenever its text changes.
 */
export function Fault({ error }) {
  if (!error) return null;
  const trace = error.trace ? html` <code>${error.trace}</code>` : null;
  const old = error.shownAt ? `; what is shown is of ${clock(error.shownAt)}` : "";
  const text = `${error.message} (${error.code})${old}`;
  return html`<p class="fault"><span role="alert">${text}</span>${trace}</p>`;
}

/** A table in a box that scrolls. A head that begins with `#` stands over numbers. */
export function Table({ caption, head, rows, empty }) {
  if (rows.length === 0) return html`<p class="quiet">${empty}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="visually-hidden">
        ${caption}
      </caption>
      <thead>
        <tr>
          ${head.map(
            (name) =>
              html`<th scope="col" key=${name} class=${name.startsWith("#") ? "number" : null}>
                ${name.replace("#", "")}
              </th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${rows}
      </tbody>
    </table>
  </div>`;
}

/** The answer of a verb until it is dismissed. It takes the focus: the button may be gone. */
export function Said({ said, dismiss }) {
  const box = useRef(null);
  useEffect(() => box.current?.focus(), [said]);
  if (!said) return null;
  const leave = () => {
    dismiss();
    document.getElementById("main").focus();
  };
  return html`<span class="said" data-tone=${said.tone} role="status" tabindex="-1" ref=${box}
    >${said.text} <button class="plain" onClick=${leave}>dismiss</button></span
  >`;
}

/**
 * The verbs of one subject, and the answer of the last one, unless another part `tell`s it. Each is
 * asked before: `phrase` is what has to be typed before an irreversible one, `withReason` asks for
 * a reason; `of` names the subject where a page has several. Its key is the subject: an answer
 * never stands under another one.
 */
export function Verbs({ verbs, tell }) {
  const [asked, setAsked] = useState(null);
  const [said, setSaid] = useState(null);
  if (access.scope !== "operate") return null;
  const buttons = verbs.map(
    (verb, no) =>
      verb.isOffered &&
      html`<button
        class="plain"
        key=${no}
        aria-label=${verb.of && `${verb.name} ${verb.of}`}
        data-tone=${verb.tone}
        onClick=${() => setAsked(verb)}
      >
        ${verb.name}
      </button>`,
  );
  const say = (text, tone) => {
    (tell ?? setSaid)({ text, tone });
    readAgain();
  };
  return html`<div class="verbs">
    ${buttons}
    ${asked && html`<${Confirm} ...${asked} say=${say} close=${() => setAsked(null)} />`}
    <${Said} said=${said} dismiss=${() => setSaid(null)} />
  </div>`;
}

function Confirm({ name, title, effect, phrase, withReason, run, tone, say, close }) {
  const box = useRef(null);
  const [typed, setTyped] = useState("");
  const [reason, setReason] = useState("");
  const [state, setState] = useState({});
  // Before anything can be typed: a space would press the button.
  useLayoutEffect(() => {
    const dialog = box.current;
    dialog.showModal();
    dialog.querySelector("button").focus();
    // Only a dialog that is closed gives the focus back.
    return () => dialog.close();
  }, []);
  const isReady = (!phrase || typed === phrase) && (!withReason || reason.trim() !== "");
  const send = async (event) => {
    event.preventDefault();
    if (!isReady || state.busy) return;
    setState({ busy: true });
    const timer = setTimeout(() => setState({ busy: true, isLate: true }), LATE_MS);
    try {
      const answer = await run(reason.trim());
      const trace = answer.trace ? `, trace ${answer.trace}` : "";
      say(`${answer.says ?? "done"}${trace}`, answer.tone);
      if (box.current) close();
    } catch (error) {
      if (box.current) setState({ error });
      else say(`${name}: ${error.message} (${error.code})`, "bad");
    } finally {
      clearTimeout(timer);
    }
  };
  const leave = () => {
    close();
    // A verb whose answer was lost may have changed something.
    if (state.error) readAgain();
  };
  return html`<dialog ref=${box} aria-labelledby="confirm-title" onClose=${leave}>
    <form onSubmit=${send}>
      <h2 id="confirm-title">${title}</h2>
      <p>${effect}</p>
      ${
        phrase &&
        html`<label
          ><span>Type <code>${phrase}</code></span>
          <input autocomplete="off" value=${typed} onInput=${(e) => setTyped(e.target.value)}
        /></label>`
      }
      ${
        withReason &&
        html`<label
          >Reason
          <input maxlength="1000" value=${reason} onInput=${(e) => setReason(e.target.value)}
        /></label>`
      }
      <${Fault} error=${state.error} />
      ${
        state.isLate &&
        html`<p role="alert">
          This takes long. The outcome is not known yet; the page waits for it.
        </p>`
      }
      <p class="acts">
        <button type="button" class="plain" onClick=${() => box.current.close()}>
          ${state.busy ? "Hide" : "Cancel"}
        </button>
        <button class="primary" data-tone=${tone} aria-disabled=${!isReady || state.busy === true}>
          ${state.busy ? "Working" : name}
        </button>
      </p>
    </form>
  </dialog>`;
}

// The question before a purchase: its answer becomes a ticket, with whose path the page buys. A
// picture of a sum for the buyer, or a search for the device: buyers who cannot read or add it
// let the device work.

import * as api from "./api.js";
import { dialog, h, plain, say, set } from "./dom.js";
import { count, t } from "./words.js";

const RETRY_MS = 2000;

const WORKER = new URL("work.js", import.meta.url).href;
let policy = null;

/** The one address that may become a script: the page's policy forbids every other. */
function script() {
  if (!globalThis.trustedTypes) return WORKER;
  policy ??= trustedTypes.createPolicy("floodgate-worker", {
    createScriptURL(url) {
      if (url !== WORKER) throw new TypeError(url);
      return url;
    },
  });
  return policy.createScriptURL(WORKER);
}

/** Starts the search; calls back with the tries so far, and with the answer, or null. */
function search(task, tried, found) {
  const worker = new Worker(script(), { type: "module" });
  worker.addEventListener("message", ({ data }) => (data.answer ? found(data.answer)
    : tried(data.tries)));
  worker.addEventListener("error", () => found(null));
  worker.postMessage(task);
  return worker;
}

function parts() {
  // The picture is an image of its own document: its markup never becomes part of the page.
  const picture = h("img", {
    class: "challenge", alt: t("challenge.image"), width: 240, height: 80,
  });
  const field = h("input", {
    id: "answer", required: true, autocomplete: "off", inputmode: "numeric",
    "aria-describedby": "answer-fault",
  });
  return {
    picture,
    field,
    question: h("div", { class: "question", hidden: true }, picture,
      h("label", { for: "answer" }, t("challenge.answer")), field),
    tries: h("p", { class: "quiet tries", hidden: true }),
    progress: h("p", { class: "progress", role: "status" }, t("loading")),
    fault: h("p", { class: "fault", id: "answer-fault", role: "alert" }),
    other: plain(""),
    another: plain(t("challenge.new")),
    close: plain(t("close")),
    go: h("button", { class: "primary" }, t("save")),
  };
}

export function askChallenge(purchase, shop) {
  const { sale_id: saleId } = purchase.sale;
  const { picture, field, question, tries, progress, fault, other, another, close, go } = parts();
  const form = h("form", { method: "dialog" }, question, progress, tries, fault,
    h("div", { class: "choices" }, other, another),
    h("div", { class: "dialog-acts" }, close, go));
  const box = dialog(t("challenge.title"), form);
  let challenge = null;
  let isSolved = false;
  let worker = null;
  let timer = null;
  // What is answered after the next challenge was asked for is not looked at.
  let round = 0;

  function stop() {
    worker?.terminate();
    clearTimeout(timer);
    round += 1;
    return round;
  }

  function later(ms, work) {
    clearTimeout(timer);
    timer = setTimeout(work, ms);
  }

  function signIn() {
    box.close();
    return shop.signIn();
  }

  async function load(kind, why = "") {
    const here = stop();
    const { status, body, retryAfterMs } = await api.challenge(saleId, kind);
    if (here !== round) return;
    if (status === 401) return signIn();
    if (status !== 200) {
      say(fault, t(status === 429 || status === 503 ? "challenge.busy" : "offline"));
      return later((retryAfterMs ?? RETRY_MS) * (1 + 0.3 * Math.random()), () => load(kind));
    }
    challenge = body;
    show();
    say(fault, why);
    const left = Date.parse(body.expires_at) - api.serverNow();
    later(Math.max(1000, left), () => load(body.kind, t("challenge.expired")));
  }

  function show() {
    const isPicture = Boolean(challenge.svg);
    question.hidden = another.hidden = go.hidden = !isPicture;
    tries.hidden = isPicture;
    const otherKind = challenge.kinds.find((kind) => kind !== challenge.kind);
    other.hidden = !otherKind;
    if (otherKind) say(other, t(`challenge.${otherKind}`));
    say(progress, isPicture ? "" : t("challenge.working"));
    if (isPicture) {
      picture.src = `data:image/svg+xml,${encodeURIComponent(challenge.svg)}`;
      field.value = "";
      return field.focus();
    }
    // The button that was pressed may be gone.
    (otherKind ? other : close).focus();
    const expected = count(2 ** challenge.work.bits);
    const tell = (number) => say(tries, t("challenge.tries", { tries: count(number), expected }));
    tell(0);
    const { prefix, bits } = challenge.work;
    const fail = () => {
      say(progress, "");
      say(fault, t("challenge.none"));
    };
    try {
      worker = search({ prefix, bits }, tell, (answer) => (answer ? send(answer) : fail()));
    } catch {
      fail();
    }
  }

  async function send(answer) {
    const here = round;
    clearTimeout(timer);
    set(go, "aria-busy", "true");
    const { challenge_id: challengeId, kind } = challenge;
    const { status, body, retryAfterMs } = await api.ticket(saleId, challengeId, answer);
    set(go, "aria-busy", null);
    if (here !== round) return;
    if (status === 200) {
      isSolved = true;
      box.close();
      return purchase.send({ type: "ticket", path_id: body.path_id });
    }
    if (status === 401) return signIn();
    if (status === 403) return load(kind, t("challenge.wrong"));
    // Not known whether it arrived: a repeat of the answer gets the same ticket.
    say(fault, t(status === 429 || status === 503 ? "challenge.busy" : "offline"));
    later((retryAfterMs ?? RETRY_MS) * (1 + 0.3 * Math.random()), () => send(answer));
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (challenge?.svg && !go.getAttribute("aria-busy")) {
      // Chinese keyboards also write the full-width forms of digits.
      send(field.value.normalize("NFKC").replace(/\s/g, ""));
    }
  });
  other.addEventListener("click", () => (
    load(challenge.kinds.find((kind) => kind !== challenge.kind))));
  another.addEventListener("click", () => load(challenge.kind));
  close.addEventListener("click", () => box.close());
  box.addEventListener("close", () => {
    stop();
    if (!isSolved) purchase.send({ type: "challenge-closed" });
  });
  other.hidden = another.hidden = go.hidden = true;
  load();
}

// The question before a purchase: its answer becomes a ticket, with whose path the page buys.

import * as api from "./api.js";
import { dialog, h, say } from "./dom.js";
import { t } from "./words.js";

export function askChallenge(purchase, shop) {
  const { sale_id: saleId } = purchase.sale;
  let challenge = null;
  let isSolved = false;
  // The picture is an image of its own document: its markup never becomes part of the page.
  const picture = h("img", {
    class: "challenge", alt: t("challenge.image"), width: 240, height: 80,
  });
  const field = h("input", {
    id: "answer", required: true, autocomplete: "off", inputmode: "numeric",
    "aria-describedby": "answer-fault",
  });
  const fault = h("p", { class: "fault", id: "answer-fault", role: "alert" });
  const another = h("button", { type: "button", class: "plain" }, t("challenge.new"));
  const form = h("form", { method: "dialog" }, picture,
    h("label", { for: "answer" }, t("challenge.answer")), field, fault,
    h("div", { class: "dialog-acts" }, another, h("button", { class: "primary" }, t("save"))));
  const box = dialog(t("challenge.title"), form);

  async function load() {
    const { status, body } = await api.challenge(saleId);
    if (status === 401) {
      box.close();
      return shop.signIn();
    }
    challenge = status === 200 ? body : null;
    if (!challenge) return say(fault, t("offline"));
    picture.src = `data:image/svg+xml,${encodeURIComponent(challenge.svg)}`;
    field.value = "";
    field.focus();
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!challenge) return load();
    const { status, body } = await api.ticket(saleId, challenge.challenge_id, field.value.trim());
    if (status === 200) {
      isSolved = true;
      box.close();
      return purchase.send({ type: "ticket", path_id: body.path_id });
    }
    say(fault, status === 403 ? t("challenge.wrong") : t("offline"));
    return status === 0 || status >= 500 ? null : load();
  });
  another.addEventListener("click", load);
  box.addEventListener("close", () => isSolved || purchase.send({ type: "challenge-closed" }));
  load();
}

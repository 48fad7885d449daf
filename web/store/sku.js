// One SKU of a sale page: price, stock, quantity and the button. Draws states, decides nothing.

import { canPay } from "./api.js";
import { h, icon, say, set } from "./dom.js";
import { count, has, money, t } from "./words.js";

const ICONS = {
  closed: "lock", idle: "bag", challenge: "wait", queued: "wait", unknown: "again",
  success: "check", limit: "lock", failed: "cross",
};
const BUSY = ["queued", "challenge"];
const CLOSED = ["limit", "failed"];
const CLICKABLE = ["idle", "unknown"];

export class SkuCard {
  #quantity = 1;
  #drawnIcon = null;
  #spoken = null;

  /** `shop.speak` is called with a message once per change of state. */
  constructor(sale, sku, shop) {
    this.sale = sale;
    this.sku = sku;
    this.shop = shop;
    this.purchase = null;
    this.#build();
  }

  get max() {
    const { policy: { max_quantity, limit }, stock_left: left } = this.sku;
    const owned = this.purchase?.state.owned ?? 0;
    return Math.max(1, Math.min(max_quantity, limit ? limit - owned : Infinity, left));
  }

  #build() {
    const { sku, sale } = this;
    const id = `sku-${sku.sku_id}`;
    this.label = h("span", { class: "label" });
    this.glyph = h("span", { class: "glyph" });
    this.button = h("button", {
      type: "button", class: "buy", "aria-describedby": `${id}-note`, onclick: () => this.#click(),
    }, this.glyph, this.label);
    this.note = h("p", { class: "note", id: `${id}-note` });
    this.number = h("p", { class: "number" });
    this.link = h("a", { class: "note-link", href: "?orders", hidden: true });
    this.bar = h("div", { class: "level" }, h("span", { class: "fill" }));
    this.left = h("span", { class: "left" });
    this.age = h("span", { class: "age" });
    this.owned = h("p", { class: "owned", hidden: sku.policy.kind !== "quota" }, "\u00a0");
    this.title = h("h2", { id });
    this.policy = h("p", { class: "policy" });
    this.price = h("p", { class: "price" });
    this.news = h("p", { class: "news", hidden: true });
    this.element = h("section", { class: "sku", "aria-labelledby": id },
      h("div", { class: "sku-head" },
        h("div", {}, this.title, this.policy, this.owned), this.price),
      h("div", { class: "stock" }, this.bar,
        h("p", { class: "stock-text" }, this.left, this.age)),
      h("div", { class: "act" }, this.#stepper(), this.button),
      h("div", { class: "notes" }, this.news, this.note, this.link, this.number));
    this.#drawTerms();
  }

  /** What an operator may change while the sale is open. */
  #drawTerms() {
    const { title, policy, price } = this.sku;
    say(this.title, title);
    say(this.policy, t(`policy.${policy.kind}`, { limit: count(policy.limit ?? 0) }));
    say(this.price, money(price, this.sale.currency));
  }

  /** Draws the SKU as the server describes it now. */
  update(sku) {
    const before = this.sku.price;
    this.sku = sku;
    this.#drawTerms();
    this.drawStock(0);
    if (sku.price === before) return;
    const [was, is] = [before, sku.price].map((price) => money(price, this.sale.currency));
    say(this.news, t("price.changed", { was, is }));
    this.news.hidden = false;
    this.shop.speak(this.news.textContent);
  }

  #stepper() {
    this.less = h("button", {
      type: "button", "aria-label": t("quantity.less"), onclick: () => this.#choose(-1),
    }, "−");
    this.more = h("button", {
      type: "button", "aria-label": t("quantity.more"), onclick: () => this.#choose(1),
    }, "+");
    this.chosen = h("output", { "aria-label": t("quantity") }, "1");
    this.stepper = h("div", { class: "stepper", role: "group", "aria-label": t("quantity") },
      this.less, this.chosen, this.more);
    return this.stepper;
  }

  #choose(by) {
    const state = this.purchase?.state;
    if (state?.name !== "idle" || state.record) return;
    this.#quantity = Math.min(this.max, Math.max(1, this.#quantity + by));
    this.draw(Date.now());
  }

  #click() {
    if (!this.purchase) return this.shop.signIn();
    this.news.hidden = true;
    this.purchase.send({ type: "click", quantity: this.#quantity });
  }

  /** Draws the button's state; `now` is the time of its seconds. */
  draw(now) {
    const state = this.purchase?.state;
    if (!state) {
      this.stepper.hidden = true;
      return say(this.label, t("buyer.none"));
    }
    const name = state.name;
    set(this.element, "data-state", name);
    say(this.label, label(state, now));
    if (this.#drawnIcon !== ICONS[name]) {
      this.#drawnIcon = ICONS[name];
      this.glyph.replaceChildren(icon(ICONS[name]));
    }
    // Focus stays: a button with the attribute `disabled` would lose it.
    set(this.button, "aria-disabled", CLICKABLE.includes(name) ? null : "true");
    set(this.button, "aria-busy", BUSY.includes(name) ? "true" : null);
    const message = note(state);
    say(this.note, message);
    const { request_id: id } = state.record ?? {};
    say(this.number, id ? t("order.number", { id }) : "");
    this.link.hidden = name !== "success" && state.note !== "order-ended";
    const owes = canPay && state.order?.state === "pending_payment";
    say(this.link, t(owes ? "note.pay" : "note.orders"));
    this.#drawQuantity(state);
    const spoken = `${name} ${message}`;
    if (this.#spoken !== null && spoken !== this.#spoken && (name !== "idle" || message)) {
      this.shop.speak(message || label(state, now));
    }
    this.#spoken = spoken;
  }

  #drawQuantity(state) {
    this.#quantity = Math.min(this.#quantity, this.max);
    const shown = state.record?.quantity ?? this.#quantity;
    say(this.chosen, count(shown));
    const locked = state.name !== "idle" || state.record;
    const { max_quantity: max, limit: quota } = this.sku.policy;
    const hasChoice = Math.min(max, quota ?? max) > 1 && !CLOSED.includes(state.name);
    this.stepper.hidden = !hasChoice;
    set(this.less, "aria-disabled", locked || shown <= 1 ? "true" : null);
    set(this.more, "aria-disabled", locked || shown >= this.max ? "true" : null);
    const { owned, limit } = state;
    if (limit === null || owned === null) return;
    say(this.owned, t("owned", { owned: count(owned), limit: count(limit) }));
  }

  /** Units left as the server said them, and how long ago that was. */
  drawStock(ageMs) {
    const { stock_left: left, initial_stock: all } = this.sku;
    const share = all > 0 ? Math.min(1, left / all) : 0;
    this.bar.style.setProperty("--share", share);
    set(this.bar, "data-low", left > 0 && share <= 0.1);
    set(this.element, "data-sold-out", left === 0);
    say(this.left, left === 0
      ? t("stock.none") : t("stock", { left: count(left), all: count(all) }));
    this.drawAge(ageMs);
  }

  drawAge(ageMs) {
    // The server's count is up to a second old when it is sent.
    const seconds = Math.floor(ageMs / 1000) + 1;
    say(this.age, ageMs < 1000 ? t("stock.age.one") : t("stock.age", { seconds: count(seconds) }));
  }
}

const secondsTo = (ms) => count(Math.max(0, Math.ceil(ms / 1000)));

/** The words on the button. */
export function label(state, now) {
  if (state.name === "queued" && state.note === "busy" && state.retryAt) {
    return t("button.busy", { seconds: secondsTo(state.retryAt - now) });
  }
  if (state.name === "queued") {
    const seconds = Math.max(0, Math.floor((now - state.since) / 1000));
    return t("button.queued", { seconds: count(seconds) });
  }
  if (["closed", "failed"].includes(state.name) && ["paused", "ended"].includes(state.note)) {
    return t(`button.${state.note}`);
  }
  if (state.name === "idle" && state.again) return t("button.again");
  if (state.name === "failed" && state.note === "sold-out") return t("button.sold-out");
  const [owned, limit] = [count(state.owned ?? 0), count(state.limit ?? 0)];
  return t(`button.${state.name}`, { owned, limit });
}

/** The sentence below the button. */
export function note(state) {
  if (state.name === "success" || state.name === "limit" || state.name === "challenge") {
    return t(`note.${state.name}`);
  }
  if (state.name === "closed") {
    const told = { before: "note.before", paused: "problem.paused" }[state.note];
    return told && state.record ? t(told) : "";
  }
  if (state.name === "queued" && !state.note) return t("note.queued");
  // Where this buyer asked for nothing, the count says it all.
  if (!state.note || state.note === "sold-out" && !state.isShort) return "";
  if (has(`note.${state.note}`)) return t(`note.${state.note}`);
  if (has(`problem.${state.note}`)) return t(`problem.${state.note}`);
  return t("problem.other", { code: state.note });
}

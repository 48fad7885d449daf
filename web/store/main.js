// The frame of the page: who is buying, in which language, and which view the address asks for.

import * as api from "./api.js";
import { dialog, h, plain, say, set } from "./dom.js";
import { ordersView } from "./orders.js";
import { isLasting, listen } from "./records.js";
import { saleView, salesView } from "./sale.js";
import { keepLanguage, otherLanguage, t } from "./words.js";

const main = document.querySelector("main");
const status = document.querySelector("#status");
const snapshot = readSnapshot();

/** The sale that an exported page shows before it has asked the server. */
function readSnapshot() {
  const text = document.querySelector("#snapshot").textContent.trim();
  return text ? JSON.parse(text) : null;
}

/** The dialog that asks who buys. */
let asking = null;
const shop = {
  /** The list of sales; an exported page of one sale is not the list. */
  home: snapshot ? "?all" : "?",
  /** Speaks to screen readers. */
  speak: (message) => say(status, message),
  signIn: () => askBuyer(),
};

/** `offered`: a token to confirm. */
function askBuyer(offered) {
  if (asking) return;
  const isJwt = api.auth === "jwt";
  const field = h("input", {
    id: "buyer", name: "buyer", required: true, autocomplete: "off", spellcheck: "false",
    value: isJwt ? (offered ?? "") : api.buyer(), inputmode: isJwt ? null : "numeric",
    "aria-describedby": "buyer-fault",
  });
  const fault = h("p", { class: "fault", id: "buyer-fault", role: "alert" });
  const close = plain(t("close"), () => box.close());
  const out = plain(t("buyer.leave"), () => {
    api.signOut();
    become();
  });
  const form = h("form", { method: "dialog" },
    h("p", {}, offered ? t("buyer.link", { id: api.subject(offered) }) : t(`buyer.${api.auth}`)),
    h("label", { for: "buyer" }, t(isJwt ? "buyer.token" : "buyer.number")),
    field, fault,
    h("div", { class: "dialog-acts" }, isJwt && api.buyer() ? out : "", close,
      h("button", { class: "primary" }, t("save"))));
  const box = dialog(t("buyer.title"), form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!api.signIn(field.value)) {
      say(fault, t("buyer.invalid"));
      return field.focus();
    }
    become();
  });
  function become() {
    drawBar();
    route();
  }
  asking = box;
  box.addEventListener("close", () => (asking = null));
  if (offered) close.focus();
  else field.select();
}

function drawBar() {
  const buyer = api.buyer();
  const link = (query, name, isHere) => h("a", {
    href: query, "data-link": true, "aria-current": isHere ? "page" : null,
  }, t(name));
  const query = new URLSearchParams(location.search);
  const isOrders = query.has("orders");
  const mark = h("a", { class: "mark", href: shop.home, "data-link": true },
    h("span", { class: "logo", "aria-hidden": "true" }), "Floodgate");
  const language = plain(t("lang.other"), () => {
    keepLanguage(otherLanguage);
    if (isLasting) query.delete("lang");
    else query.set("lang", otherLanguage);
    location.search = query;
    if (String(query) === location.search.replace(/^\?/, "")) location.reload();
  }, { lang: langTag() });
  const name = buyer ? t("buyer", { id: buyer }) : t("buyer.none");
  const who = plain(name, () => askBuyer(), { class: "plain who" });
  document.querySelector(".bar").replaceChildren(mark,
    h("nav", { "aria-label": t("nav") },
      link(shop.home, "nav.sales", !isOrders), link("?orders", "nav.orders", isOrders)),
    h("div", { class: "bar-end" }, language, who));
  say(document.querySelector(".skip"), t("skip"));
}

const langTag = () => (otherLanguage === "zh" ? "zh-Hans" : "en");

let leave = null;
function route() {
  leave?.();
  for (const open of document.querySelectorAll("dialog")) open.close();
  shown = location.search;
  const query = new URLSearchParams(location.search);
  document.title = t("title");
  set(main, "data-phase", null);
  const sale = query.get("sale") ?? snapshot?.sale_id;
  if (query.has("orders")) leave = ordersView(main, shop);
  else if (sale && !query.has("all")) {
    leave = saleView(main, sale, shop, snapshot?.sale_id === sale ? snapshot : null);
  } else leave = salesView(main);
  drawBar();
}

// One delegated listener for the links between views; everything else is a visit of its own.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-link]");
  const isPlain = !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0;
  if (!link || !isPlain) return;
  event.preventDefault();
  history.pushState(null, "", link.href);
  route();
  main.focus();
  scrollTo(0, 0);
});
// A step within the page, as of the link to its content, is no visit.
let shown = null;
addEventListener("popstate", () => location.search !== shown && route());
// Another tab has become somebody else: so has this one, whose calls read the same storage.
listen("fg1:buyer", route);
listen("fg1:token", (token) => {
  api.follow(token);
  // The other tab has signed in again.
  if (asking) route();
});

route();
if (api.offered) askBuyer(api.offered);

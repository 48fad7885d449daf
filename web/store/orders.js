// My orders: pay, cancel, buy again, and how long there is to pay.

import * as api from "./api.js";
import { dialog, h, plain, say, set } from "./dom.js";
import { tick } from "./sale.js";
import { clock, has, money, t, when } from "./words.js";

/** While a payment is under way, the list is read again after this long. */
const PAYING_MS = 2000;
/** Otherwise after this long, or once the time to pay of an order is over. */
const CALM_MS = 30000;
const SPOKEN_MS = [300000, 60000];

export function ordersView(main, shop) {
  const list = h("ul", { class: "orders" });
  const empty = h("p", { class: "quiet" }, t("loading"));
  const more = plain(t("orders.more"), () => {
    pages += 1;
    read();
  }, { hidden: true });
  document.title = `${t("orders.title")} · ${t("title")}`;
  main.replaceChildren(h("h1", {}, t("orders.title")), list, empty, more);
  const rows = new Map();
  let pages = 1;
  let timer = null;
  let isOver = false;
  let isClockRead = false;

  async function read() {
    clearTimeout(timer);
    if (isOver || document.hidden) return;
    if (!api.buyer()) {
      say(empty, t("orders.who"));
      return shop.signIn();
    }
    // The countdowns follow the server's clock, which the list of sales tells.
    if (!isClockRead) isClockRead = (await api.sales()).status === 200;
    const { status, body, retryAfterMs } = await api.allOrders(pages);
    if (isOver) return;
    if (status === 401) return shop.signIn();
    if (status === 200) {
      show(body.orders);
      more.hidden = !body.next_cursor;
      say(empty, rows.size > 0 ? "" : t("orders.none"));
    } else if (status !== 429) {
      // What was read just before the limit is still shown.
      say(empty, t("offline"));
    }
    const waits = [...rows.values()].map(({ order }) => msToChange(order));
    timer = setTimeout(read, Math.max(PAYING_MS, retryAfterMs ?? 0, Math.min(CALM_MS, ...waits)));
  }

  /** Rows that are there stay where they are: to move one would take the focus from it. */
  function show(orders) {
    orders.forEach((order, position) => {
      const known = rows.get(order.request_id);
      if (known) return known.update(order);
      const row = orderRow(order, shop, read);
      rows.set(order.request_id, row);
      list.insertBefore(row.element, list.children[position] ?? null);
    });
  }

  const stopTicking = tick(() => rows.forEach((row) => row.draw()));
  const wake = () => read();
  document.addEventListener("visibilitychange", wake);
  for (const name of ["online", "pageshow"]) addEventListener(name, wake);
  read();
  return () => {
    isOver = true;
    clearTimeout(timer);
    stopTicking();
    document.removeEventListener("visibilitychange", wake);
    for (const name of ["online", "pageshow"]) removeEventListener(name, wake);
  };
}

const isUnpaid = (order) => ["pending_payment", "paying"].includes(order.state);

/** How long there is still to pay. */
const msToPay = (order) => Date.parse(order.pay_by) - api.serverNow();

/** Whether the time to pay is over, and the server has not said yet what became of the order. */
const isOverdue = (order) => isUnpaid(order) && order.pay_by !== undefined && msToPay(order) <= 0;

/** When the server is expected to change the order by itself. */
function msToChange(order) {
  if (order.state === "paying") return 0;
  return isUnpaid(order) && order.pay_by !== undefined ? msToPay(order) : Infinity;
}

/** What became of its money or its units, besides its state. */
function remarkOf(order) {
  const money = order.payment?.state;
  if (money === "refund_failed") return "order.refund-failed";
  if (order.paid_unfulfilled || money === "refund_due") return "order.owed";
  if (money === "refunded" && order.state !== "refunded") return "order.refunded";
  if (order.replaced_by) return "order.replaced";
  return order.state === "pending_payment" && money === "closed" ? "order.closed" : null;
}

function orderParts(order) {
  const button = (style, name) => h("button", { type: "button", class: style }, t(name));
  const again = `?sale=${encodeURIComponent(order.sale_id)}`;
  return {
    heading: h("h2", { tabindex: -1 }),
    about: h("p", { class: "quiet" }),
    number: h("p", { class: "number" }, t("order.number", { id: order.request_id })),
    amount: h("p", { class: "price" }),
    state: h("span", { class: "order-state" }),
    due: h("p", { class: "due" }),
    note: h("p", { class: "note", role: "alert" }),
    pay: button("primary", "order.pay"),
    cancel: button("plain", "order.cancel"),
    again: h("a", { class: "plain", "data-link": true, href: again }, t("order.again")),
  };
}

/** Asks before an order is cancelled. */
function askCancel(what, work) {
  const keep = plain(t("order.cancel.keep"), () => box.close(), { autofocus: true });
  const sure = h("button", { type: "button", class: "primary" }, t("order.cancel"));
  const box = dialog(t("order.cancel.title"), h("p", {}, t("order.cancel.text", { what })),
    h("div", { class: "dialog-acts" }, keep, sure));
  sure.addEventListener("click", () => {
    box.close();
    work();
  });
}

function orderRow(first, shop, reread) {
  const { heading, about, number, amount, state, due, note, ...acts } = orderParts(first);
  const { pay, cancel, again } = acts;
  const element = h("li", { class: "order" },
    h("div", { class: "order-head" }, h("div", {}, heading, about, number), amount),
    h("div", { class: "order-foot" },
      h("div", {}, state, due), h("div", { class: "order-acts" }, cancel, pay, again)),
    note);
  const row = { element, order: first, update, draw };
  let spoken = 0;

  /** While servers are replaced, an older one may answer, which tells no titles. */
  function drawTitles({ sale_title: sale, sku_title: sku, currency, ...order }) {
    say(heading, sku ?? order.sku_id);
    const quantity = t("order.quantity", { quantity: order.quantity });
    const placed = t("order.placed", { time: when(order.placed_at) });
    say(about, [sale ?? order.sale_id, quantity, placed].join(" · "));
    say(amount, currency ? money(order.amount, currency) : "");
  }

  function update(order) {
    // What was said of the last call is over with it.
    const isNews = order.state !== row.order.state;
    if (isNews) say(note, "");
    row.order = order;
    drawTitles(order);
    set(element, "data-state", order.state);
    const remark = remarkOf(order);
    say(state, `${t(`order.state.${order.state}`)} ${remark ? t(remark) : ""}`.trim());
    if (isNews) shop.speak(`${heading.textContent}: ${state.textContent}`);
    again.hidden = !order.again;
    draw();
  }

  function draw() {
    const { order } = row;
    const overdue = isOverdue(order);
    cancel.hidden = overdue || !isUnpaid(order);
    pay.hidden = cancel.hidden || !api.canPay;
    const waits = isUnpaid(order) && order.pay_by;
    const ms = waits ? msToPay(order) : 0;
    const left = waits && ms > 0 ? t("order.due", { time: clock(ms) }) : "";
    say(due, overdue ? t("order.due.over") : left);
    set(due, "data-soon", waits && ms <= 60000);
    const marks = waits && ms > 0 ? SPOKEN_MS.filter((mark) => ms <= mark).length : 0;
    if (marks > spoken) shop.speak(t("order.due.say", { time: clock(ms) }));
    spoken = marks;
  }

  async function run(button, work) {
    if (button.getAttribute("aria-busy")) return;
    set(button, "aria-busy", "true");
    const { status, body } = await work();
    set(button, "aria-busy", null);
    if (status === 200) say(note, "");
    else if (has(`problem.${body?.code}`)) say(note, t(`problem.${body.code}`));
    else say(note, t("order.not-done"));
    return status === 200 ? body : null;
  }

  pay.addEventListener("click", async () => {
    const started = await run(pay, () => api.pay(row.order.request_id));
    if (started) location.assign(started.url);
    else reread();
  });
  cancel.addEventListener("click", () => askCancel(heading.textContent, async () => {
    const ended = await run(cancel, () => api.cancel(row.order.request_id));
    if (ended) update(ended);
    await reread();
    if (cancel.hidden) heading.focus();
  }));
  update(first);
  return row;
}

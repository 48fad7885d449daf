// The list of sales, and the page of one sale.

import * as api from "./api.js";
import { askChallenge } from "./challenge.js";
import { h, plain, say, set } from "./dom.js";
import { Purchase } from "./purchase.js";
import { isLasting } from "./records.js";
import { SkuCard } from "./sku.js";
import { clock, count, t, when } from "./words.js";

/** Waits after failed calls, from the first one up, unless the server says how long. */
const RETRY_MS = 3000;
const RETRY_MAX_MS = 60000;
/** The list of sales is read at most this often. */
const LIST_MS = 5000;
/** Times to the start that are spoken, milliseconds. */
const SPOKEN_MS = [600000, 300000, 60000, 10000];

const ended = (sale, now) => sale.phase === "closed" || now >= Date.parse(sale.ends_at);

/** Phase of a sale for its buyers, at the server's time. */
export function phaseAt(sale, now) {
  if (ended(sale, now)) return "ended";
  if (now < Date.parse(sale.starts_at)) return "before";
  return sale.phase === "paused" ? "paused" : "open";
}

/** A sale that was closed early did not end at the end of its window. */
function line(sale, phase, now) {
  if (phase === "ended" && now < Date.parse(sale.ends_at)) return t("phase.closed");
  return t(`phase.${phase}`, { time: when(phase === "before" ? sale.starts_at : sale.ends_at) });
}

/**
 * Repeats `work` after the time that it resolves to, while the page is visible; null after a
 * failure, and each failure in a row doubles the wait.
 */
function repeat(work) {
  let timer = null;
  let isOver = false;
  let failures = 0;
  const run = async () => {
    clearTimeout(timer);
    if (isOver || document.hidden) return;
    const resolved = await work();
    failures = resolved === null ? failures + 1 : 0;
    const ms = resolved ?? Math.min(RETRY_MAX_MS, RETRY_MS * 2 ** (failures - 1));
    clearTimeout(timer);
    // Pages that opened together do not ask together.
    if (!isOver) timer = setTimeout(run, ms * (0.9 + 0.2 * Math.random()));
  };
  const wake = () => document.hidden || run();
  document.addEventListener("visibilitychange", wake);
  addEventListener("online", wake);
  const stop = () => {
    isOver = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
    removeEventListener("online", wake);
  };
  return { run, stop };
}

export function salesView(main) {
  const list = h("ul", { class: "sales" });
  const empty = h("p", { class: "quiet", role: "note" }, t("loading"));
  const more = plain(t("sales.more"), () => {
    pages += 1;
    polling.run();
  }, { hidden: true });
  const rows = new Map();
  let pages = 1;
  document.title = `${t("sales.title")} · ${t("title")}`;
  main.replaceChildren(h("h1", {}, t("sales.title")), list, empty, more);
  const polling = repeat(async () => {
    const { status, body, retryAfterMs } = await api.allSales(pages);
    if (status !== 200) {
      say(empty, t("offline"));
      return retryAfterMs;
    }
    const now = api.serverNow();
    // What is on sale or comes next is first, what is over last.
    const rank = (sale) => ["open", "paused", "before", "ended"].indexOf(phaseAt(sale, now));
    const sales = [...body.sales].sort((a, b) => rank(a) - rank(b));
    show(sales, now);
    say(empty, sales.length > 0 ? "" : t("sales.none"));
    more.hidden = !body.next_cursor;
    const polls = sales.map((sale) => sale.poll_after_ms);
    return Math.max(LIST_MS, Math.min(RETRY_MAX_MS, ...polls));
  });

  /** Rows that are there stay: to replace one would end a click and a reader's place in it. */
  function show(sales, now) {
    const focused = document.activeElement;
    const ids = new Set(sales.map((sale) => sale.sale_id));
    for (const [id, { element }] of rows) {
      if (ids.has(id)) continue;
      element.remove();
      rows.delete(id);
    }
    sales.forEach((sale, position) => {
      const row = rows.get(sale.sale_id) ?? saleRow(sale);
      rows.set(sale.sale_id, row);
      row.update(sale, now);
      const there = list.children[position] ?? null;
      if (there !== row.element) list.insertBefore(row.element, there);
    });
    // To move a row takes the focus from it.
    if (focused !== document.activeElement && list.contains(focused)) focused.focus();
  }

  polling.run();
  return polling.stop;
}

function saleRow({ sale_id: id }) {
  const title = h("span", { class: "sale-title" });
  const time = h("span", { class: "sale-when" });
  const stock = h("span", { class: "sale-stock" });
  const href = `?sale=${encodeURIComponent(id)}`;
  const element = h("li", {}, h("a", { href, "data-link": true }, title, time, stock));

  function update(sale, now) {
    const phase = phaseAt(sale, now);
    const left = sale.skus.reduce((sum, sku) => sum + sku.stock_left, 0);
    const all = sale.skus.reduce((sum, sku) => sum + sku.initial_stock, 0);
    set(element, "data-phase", phase);
    say(title, sale.title);
    say(time, line(sale, phase, now));
    say(stock, left === 0 ? t("stock.none") : t("stock", { left: count(left), all: count(all) }));
    stock.hidden = phase === "ended";
  }

  return { element, update };
}

export function saleView(main, saleId, shop, snapshot) {
  let sale = null;
  let readAt = 0;
  let cards = [];
  let spoken = null;
  let stopTicking = null;
  let isMineRead = false;
  let isOver = false;

  const parts = {
    title: h("h1", {}, t("loading")),
    when: h("p", { class: "when" }, "\u00a0"),
    timer: h("p", { class: "timer", role: "timer" }),
    timerText: h("p", { class: "timer-text" }, "\u00a0"),
    skus: h("div", { class: "skus" }),
    offline: h("p", { class: "offline", hidden: true }, t("offline")),
    storage: h("p", { class: "quiet", hidden: isLasting }, t("storage.none")),
  };
  const crumb = h("a", { class: "crumb", href: shop.home, "data-link": true }, t("sale.back"));
  const head = h("div", { class: "sale-head" },
    h("div", {}, crumb, parts.title, parts.when),
    h("div", { class: "countdown" }, parts.timerText, parts.timer));
  const frame = [head, parts.offline, parts.skus, parts.storage];
  main.replaceChildren(...frame);

  const hooks = (card) => ({
    changed: () => card.draw(Date.now()),
    refresh: () => readMine(),
    signIn: () => shop.signIn(),
    challenge: (purchase) => askChallenge(purchase, shop),
  });

  function show(next, isFresh) {
    const isNew = sale === null;
    sale = next;
    document.title = `${sale.title} · ${t("title")}`;
    say(parts.title, sale.title);
    if (isNew) {
      cards = sale.skus.map((sku) => new SkuCard(sale, sku, shop));
      parts.skus.replaceChildren(...cards.map((card) => card.element));
      for (const card of cards) {
        if (api.buyer()) card.purchase = new Purchase(sale, card.sku, hooks(card));
        card.draw(Date.now());
      }
      readMine();
      stopTicking = tick(draw);
    }
    if (isFresh) {
      readAt = performance.now();
      for (const card of cards) {
        const sku = sale.skus.find((one) => one.sku_id === card.sku.sku_id);
        if (sku) card.update(sku);
      }
    }
    tellPhase(isFresh);
    draw();
  }

  let lastPhase = null;
  function tellPhase(isFresh) {
    const phase = phaseAt(sale, api.serverNow());
    if (phase === lastPhase && !isFresh) return;
    lastPhase = phase;
    for (const card of cards) {
      // The count of an exported page is old.
      const soldOut = readAt > 0 && card.sku.stock_left === 0;
      card.purchase?.send({ type: "sale", phase, soldOut });
    }
  }

  function draw() {
    const now = api.serverNow();
    const phase = phaseAt(sale, now);
    tellPhase(false);
    set(main, "data-phase", phase);
    say(parts.when, line(sale, phase, now));
    const to = phase === "before" ? sale.starts_at : sale.ends_at;
    const counts = phase === "before" || phase === "open";
    say(parts.timerText, t(`count.${phase}`));
    say(parts.timer, counts ? clock(Date.parse(to) - now) : "");
    const toStart = Date.parse(sale.starts_at) - now;
    for (const card of cards) {
      card.draw(Date.now());
      if (phase === "before") card.purchase?.prepare(toStart);
      if (readAt > 0) card.drawAge(performance.now() - readAt);
    }
    parts.storage.hidden = isLasting;
    speakTime(phase, toStart);
  }

  function speakTime(phase, ms) {
    const due = phase === "before" ? SPOKEN_MS.filter((mark) => ms <= mark).length : -1;
    if (spoken !== null && due > spoken) shop.speak(t("count.say", { time: clock(ms) }));
    if (spoken !== null && spoken >= 0 && phase === "open") shop.speak(t("count.started"));
    spoken = due;
  }

  let [numReads, numOpen, lastRead] = [0, 0, 0];
  /** Polls read it again from then on; after a refused token a sign-in begins the page anew. */
  let mineAt = 0;
  async function readMine() {
    if (!api.buyer()) return;
    numReads += 1;
    const read = numReads;
    numOpen += 1;
    const { status, body, retryAfterMs } = await api.mine(saleId);
    numOpen -= 1;
    // An older answer may not undo what a newer one said.
    if (isOver || read < lastRead) return;
    isMineRead = status === 200;
    mineAt = status === 401 ? Infinity : performance.now() + (retryAfterMs ?? 0);
    if (status === 401) return shop.signIn();
    if (status !== 200) return;
    lastRead = read;
    for (const found of body.skus) {
      const card = cards.find((one) => one.sku.sku_id === found.sku_id);
      card?.purchase?.send({ type: "mine", ...found });
    }
  }

  const polling = repeat(async () => {
    const { status, body, retryAfterMs } = await api.sale(saleId);
    if (isOver) return null;
    // Another 404 is not the shop's: of a proxy, or of a host of static files alone.
    const isUnknown = status === 404 && body?.code === "unknown-sku";
    parts.offline.hidden = status === 200 || isUnknown;
    if (isUnknown) {
      main.replaceChildren(h("h1", {}, t("sale.unknown")), crumb);
      return 60000;
    }
    if (status !== 200) return retryAfterMs;
    if (!head.isConnected) main.replaceChildren(...frame);
    const isFirst = sale === null;
    show(body, true);
    const mayRead = numOpen === 0 && performance.now() >= mineAt;
    if (!isFirst && mayRead && (!isMineRead || cards.some(isOverdue))) readMine();
    const toStart = Date.parse(body.starts_at) - api.serverNow();
    // The countdown needs no poll; the first count is wanted soon after the start.
    return toStart > 0 ? Math.min(body.poll_after_ms, toStart + 500) : body.poll_after_ms;
  });

  const wake = () => {
    for (const { purchase } of cards) {
      if (document.hidden) purchase?.hide();
      else purchase?.send({ type: "wake" });
    }
    if (!document.hidden && sale !== null) readMine();
  };
  document.addEventListener("visibilitychange", wake);
  for (const name of ["online", "pageshow"]) addEventListener(name, wake);

  if (snapshot) show(snapshot, false);
  polling.run();
  return () => {
    isOver = true;
    polling.stop();
    stopTicking?.();
    document.removeEventListener("visibilitychange", wake);
    for (const name of ["online", "pageshow"]) removeEventListener(name, wake);
    for (const { purchase } of cards) purchase?.close();
  };
}

/** Whether the time to pay has just run out for the order that a button shows. */
function isOverdue({ purchase }) {
  const ms = api.serverNow() - Date.parse(purchase?.state.order?.pay_by);
  return ms >= 0 && ms < 2 * RETRY_MAX_MS;
}

/** Calls back four times a second. */
export function tick(work) {
  const timer = setInterval(work, 250);
  return () => clearInterval(timer);
}

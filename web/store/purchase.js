// Carries out what button.js decides for one SKU: calls, timers, the stored record.

import * as api from "./api.js";
import { initial, step } from "./button.js";
import { exclusively, listen, read, recordKey, write } from "./records.js";

/** Ids are asked for at a random moment of this long before the start. */
const PREPARE_MS = 60000;
/** After a refused event stream the status is polled for this long. */
const STREAM_MS = 30000;

export class Purchase {
  #key;
  #timers = new Set();
  #pollTimer = null;
  #stream = null;
  /** No stream is asked for before. */
  #streamAt = 0;
  #stopListening;
  #closed = false;
  #isPrepared = false;

  /** `hooks`: changed(state), refresh(), signIn(). */
  constructor(sale, sku, hooks) {
    this.sale = sale;
    this.sku = sku;
    this.hooks = hooks;
    this.state = initial(sku.policy.kind, sale.ticket_required);
    this.#key = recordKey(api.buyer(), sale.sale_id, sku.sku_id);
    this.#stopListening = listen(this.#key, (record) => this.send({ type: "record", record }));
    const record = read(this.#key);
    if (record) this.send({ type: "record", record });
  }

  send(event) {
    if (this.#closed) return;
    const before = this.state;
    const { state, effects } = step(before, { now: Date.now(), ...event });
    this.state = state;
    if (state !== before) this.hooks.changed(state);
    for (const effect of effects) this.#carryOut(effect);
  }

  /** Leaves the page: what was sent goes on at the server. */
  close() {
    this.#closed = true;
    this.#stopListening();
    this.hide();
    for (const timer of [...this.#timers, this.#pollTimer]) clearTimeout(timer);
  }

  /** A hidden tab keeps no stream open; the event `wake` begins again. */
  hide() {
    this.#stream?.abort();
    this.#stream = null;
    this.#streamAt = 0;
  }

  /** Spreads the preparation of a crowd; only the purchase itself is sent at the start. */
  prepare(toStartMs) {
    const isIssued = this.sku.policy.kind !== "one_per_buyer";
    if (this.#isPrepared || !isIssued || toStartMs > PREPARE_MS) return;
    this.#isPrepared = true;
    this.#after(0.8 * toStartMs * Math.random(), 0, async () => {
      const { status, body } = await api.requestId(this.sale.sale_id, this.sku.sku_id);
      if (status === 200) this.send({ type: "prepared-id", request_id: body.request_id });
    });
  }

  #after(ms, jitter, work) {
    const timer = setTimeout(() => {
      this.#timers.delete(timer);
      work();
    }, ms * (1 + Math.random() * (jitter ?? 0)));
    this.#timers.add(timer);
    return timer;
  }

  /** One poll at a time, however many events ask for one. */
  #pollAfter(ms, jitter, id) {
    clearTimeout(this.#pollTimer);
    this.#pollTimer = this.#after(ms, jitter, () => this.#poll(id));
  }

  #carryOut(effect) {
    switch (effect.do) {
      case "save":
        return write(this.#key, effect.record);
      case "forget":
        return write(this.#key, null);
      case "get-id":
        return this.#getId();
      case "buy":
        return this.#buy(effect.record);
      case "watch":
        return this.#watch(effect);
      case "poll":
        return this.#pollAfter(effect.afterMs, effect.jitter, effect.id);
      case "after":
        return this.#after(effect.ms, effect.jitter, () => this.send({ type: effect.timer }));
      case "at-start": {
        const ms = Math.max(0, Date.parse(effect.startsAt) - api.serverNow());
        // A share of a long wait would be late: the jitter is of one second.
        return this.#after(ms + 1000 * Math.random() * effect.jitter, 0,
          () => this.send({ type: "retry" }));
      }
      case "refresh":
        return this.hooks.refresh();
      case "sign-in":
        return this.hooks.signIn();
      case "challenge":
        return this.hooks.challenge(this);
    }
  }

  /** Two tabs must not begin two purchases: the second one shows that of the first. */
  #getId() {
    return exclusively(this.#key, async () => {
      const other = read(this.#key);
      if (other) return this.send({ type: "record", record: other });
      const answer = await api.requestId(this.sale.sale_id, this.sku.sku_id);
      const { status, body, retryAfterMs } = answer;
      if (status === 200) return this.send({ type: "request-id", request_id: body.request_id });
      return this.send({ type: "id-refused", status, retryAfterMs });
    });
  }

  async #buy(record) {
    const path = record.path_id ?? this.sale.sale_id;
    const answer = await api.buy(path, this.sku.sku_id, record);
    if (answer.status === 0 || (answer.status >= 500 && !answer.body)) {
      return this.send({ type: "lost", id: record.request_id });
    }
    return this.send({ type: "answer", id: record.request_id, ...answer });
  }

  async #poll(id) {
    this.send({ type: "status", id, ...(await api.request(id)) });
  }

  /** Streams while the tab is visible, and polls where no stream is to be had. */
  async #watch({ id, afterMs }) {
    if (this.#stream) return;
    if (performance.now() < this.#streamAt) return this.#pollAfter(afterMs, 0, id);
    const stream = new AbortController();
    this.#stream = stream;
    let hasEvents = false;
    const ended = await api.events(id, stream.signal, (body) => {
      hasEvents = true;
      // The state "queued" is no news: it would open a stream again.
      if (body.state !== "queued") this.send({ type: "status", id, status: 200, body });
    });
    if (this.#stream === stream) this.#stream = null;
    if (ended || stream.signal.aborted) return;
    if (!hasEvents) this.#streamAt = performance.now() + STREAM_MS;
    this.#pollAfter(hasEvents ? 0 : afterMs, 0, id);
  }
}

// What outlives a reload: the record of each purchase, per buyer, sale and SKU, shared by all tabs
// of the browser. What storage refuses stays in memory, and the page says so.

const memory = new Map();
const listeners = new Set();

export let isLasting = true;
try {
  localStorage.setItem("fg1:probe", "1");
  localStorage.removeItem("fg1:probe");
} catch {
  isLasting = false;
}

function stored(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

export function read(key) {
  const text = memory.get(key) ?? stored(key);
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export function write(key, value) {
  const text = value === null ? null : JSON.stringify(value);
  memory.delete(key);
  try {
    if (text === null) localStorage.removeItem(key);
    else localStorage.setItem(key, text);
  } catch {
    isLasting = false;
    if (text !== null) memory.set(key, text);
  }
}

/** Calls back with the value after another tab has changed it. Returns how to end that. */
export function listen(key, callback) {
  const entry = { key, callback };
  listeners.add(entry);
  return () => listeners.delete(entry);
}

addEventListener("storage", (event) => {
  for (const { key, callback } of listeners) {
    if (event.key === key) callback(read(key));
  }
});

export const recordKey = (buyer, sale, sku) => `fg1:${buyer}:${sale}:${sku}`;

/** Runs one tab at a time where the browser can; elsewhere without a lock. */
export function exclusively(name, work) {
  return navigator.locks ? navigator.locks.request(name, work) : work();
}

// What the page shows is told by its query: a link to it, reload and the back button work. The
// refresh interval and what else belongs to the person is kept in the tab.

import { useCallback, useEffect, useRef, useState } from "./htm-preact.min.js";
import { get } from "./api.js";

const changed = "floodgate-location";

export const parameters = () => Object.fromEntries(new URLSearchParams(location.search));

/** Shows other values of this view. Empty values leave the query. */
export function go(values) {
  const set = Object.entries(values).filter(([, value]) => value);
  history.pushState(null, "", `?${new URLSearchParams(set)}`);
  dispatchEvent(new Event(changed));
}

/** Puts keyboard and screen reader at the beginning of the view. */
export function focusMain() {
  document.getElementById("main").focus();
  scrollTo(0, 0);
}

/** Shows another view. */
export function visit(values) {
  go(values);
  focusMain();
}

export function useParameters() {
  const [values, setValues] = useState(parameters);
  useEffect(() => {
    const read = () => setValues(parameters());
    addEventListener(changed, read);
    addEventListener("popstate", read);
    return () => {
      removeEventListener(changed, read);
      removeEventListener("popstate", read);
    };
  }, []);
  return values;
}

export const INTERVALS = [0, 2, 5, 15, 60];

export const interval = {
  seconds: Number(sessionStorage.getItem("floodgate-every") ?? 2),
  set(seconds) {
    interval.seconds = seconds;
    sessionStorage.setItem("floodgate-every", String(seconds));
    dispatchEvent(new Event("floodgate-interval"));
  },
};

/** Refreshing pauses while the tab is hidden and while a dialog is open. */
const isPaused = () =>
  interval.seconds === 0 || document.hidden || document.querySelector("dialog[open]") !== null;

/**
 * The answer of `read`, read again one interval after the last answer: polls never pile up.
 * `{answer, error, at, reload}`; a failed poll keeps the last answer. Another key begins anew.
 */
export function usePolled(read, key) {
  const [shown, setShown] = useState({});
  const latest = useRef(read);
  latest.current = read;
  const run = useCallback(
    async (signal) => {
      try {
        const answer = await latest.current(signal);
        if (!signal?.aborted) setShown({ key, answer, at: Date.now() });
      } catch (error) {
        // The answer to another question must not stand under this one.
        const known = (last) => (last.key === key ? last : {});
        if (error.name !== "AbortError") setShown((last) => ({ ...known(last), key, error }));
        return error.status;
      }
    },
    [key],
  );
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const schedule = () => {
      clearTimeout(timer);
      if (!stop.signal.aborted) timer = setTimeout(next, (interval.seconds || 1) * 1000);
    };
    const next = async (isFirst) => {
      const status = isFirst === true || !isPaused() ? await run(stop.signal) : 0;
      // A refused token stays refused.
      if (status === 401) stop.abort();
      schedule();
    };
    next(true);
    addEventListener("floodgate-interval", schedule, { signal: stop.signal });
    // What a tab shows that comes back may be hours old.
    document.addEventListener("visibilitychange", next, { signal: stop.signal });
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, run]);
  const isCurrent = shown.key === key;
  return { ...(isCurrent ? shown : {}), reload: run };
}

export const usePath = (path) => usePolled((signal) => get(path, signal), path);

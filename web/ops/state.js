// What the page shows is told by its query: a link to it, reload and the back button work. The
// refresh interval and what else belongs to the person is kept in the tab.

import { useEffect, useRef, useState } from "./htm-preact.min.js";
import { get } from "./api.js";

const changed = "floodgate-location";

const parameters = () => Object.fromEntries(new URLSearchParams(location.search));

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

const reread = "floodgate-reread";

/** Every read of the page is made again: a verb may have changed what any of them shows. */
export const readAgain = () => dispatchEvent(new Event(reread));

/**
 * The answer of `read`, which is made again one interval after its last answer, when `occasion`
 * changes, and after `readAgain`. A read that begins ends the one before: reads never pile up, and
 * no older answer comes last. `{answer, error, at}`; a failed read keeps the last answer. Another
 * key begins anew.
 */
export function usePolled(read, key, occasion) {
  const [shown, setShown] = useState({});
  const latest = useRef(read);
  latest.current = read;
  useEffect(() => {
    const stop = new AbortController();
    let current = new AbortController();
    let timer = 0;
    const schedule = () => {
      clearTimeout(timer);
      if (!stop.signal.aborted) timer = setTimeout(poll, (interval.seconds || 1) * 1000);
    };
    const readNow = async () => {
      clearTimeout(timer);
      current.abort();
      current = new AbortController();
      const { signal } = current;
      try {
        const answer = await latest.current(signal);
        if (signal.aborted) return;
        setShown({ key, answer, at: Date.now() });
      } catch (error) {
        if (signal.aborted) return;
        // The answer to another question must not stand under this one.
        const known = (last) => (last.key === key ? last : {});
        setShown((last) => {
          const kept = known(last);
          error.shownAt = kept.at;
          return { ...kept, key, error };
        });
        // A refused token stays refused.
        if (error.status === 401) stop.abort();
      }
      schedule();
    };
    const poll = () => (isPaused() ? schedule() : readNow());
    readNow();
    addEventListener("floodgate-interval", schedule, { signal: stop.signal });
    addEventListener(reread, readNow, { signal: stop.signal });
    // What a tab shows that comes back may be hours old.
    document.addEventListener("visibilitychange", poll, { signal: stop.signal });
    return () => {
      stop.abort();
      current.abort();
      clearTimeout(timer);
    };
  }, [key, occasion]);
  return shown.key === key ? shown : {};
}

export const usePath = (path) => usePolled((signal) => get(path, signal), path);

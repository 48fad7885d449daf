// What the page shows is told by its query: a link to it, reload and the back button work. The
// refresh interval and what else belongs to the person is kept in the tab.

import { useCallback, useEffect, useRef, useState } from "./htm-preact.min.js";
import { get } from "./api.js";

const changed = "floodgate-location";

export const parameters = () => Object.fromEntries(new URLSearchParams(location.search));

/** Shows another view. Empty values leave the query. */
export function go(values) {
  const set = Object.entries(values).filter(([, value]) => value);
  history.pushState(null, "", `?${new URLSearchParams(set)}`);
  dispatchEvent(new Event(changed));
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
 * `{answer, error, at, reload}`; a failed poll keeps the last answer.
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
      }
    },
    [key],
  );
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const next = async (isFirst) => {
      if (isFirst || !isPaused()) await run(stop.signal);
      if (!stop.signal.aborted) timer = setTimeout(next, (interval.seconds || 1) * 1000);
    };
    const restart = () => {
      clearTimeout(timer);
      timer = setTimeout(next, (interval.seconds || 1) * 1000);
    };
    next(true);
    addEventListener("floodgate-interval", restart);
    return () => {
      stop.abort();
      clearTimeout(timer);
      removeEventListener("floodgate-interval", restart);
    };
  }, [key, run]);
  const isCurrent = shown.key === key;
  return { ...(isCurrent ? shown : {}), reload: run };
}

export const usePath = (path) => usePolled((signal) => get(path, signal), path);

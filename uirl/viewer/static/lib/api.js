// Talking to the server: JSON in and out, errors in the server's own words.

import { useCallback, useEffect, useState } from "../vendor/htm-preact.js";
import { withQuery } from "./router.js";

/** What the server refused, or that it did not answer. `status` 0: no answer. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** The address of something of a run: `of("mai", "trajectories", id)`. */
export function of(key, ...parts) {
  return ["/api/runs", key, ...parts].map((part, i) => (i ? segment(part) : part)).join("/");
}

/** A part of an address; browsers take dots alone out of addresses, so those have a NUL before them. */
function segment(part) {
  return encodeURIComponent([".", ".."].includes(part) ? `\0${part}` : part);
}

/** JSON as it stands: whole numbers beyond 2^53, seeds among them, stay exact as texts; null where it is no JSON. */
function read(text) {
  const exact = (_, value, context) => (tooLong(value) ? (context?.source ?? value) : value);
  try {
    return /[^.\d]\d{16}/.test(text) ? JSON.parse(text, exact) : JSON.parse(text);
  } catch {
    return null;
  }
}

function tooLong(value) {
  return Number.isInteger(value) && !Number.isSafeInteger(value);
}

async function answer(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The viewer does not answer. Is `uirl view` still running?", 0);
  }
  const body = response.status === 204 ? null : read(await response.text());
  if (response.ok && body === null && response.status !== 204)
    throw new ApiError("The viewer answered with something that is no JSON.", response.status);
  if (!response.ok) throw new ApiError(body?.error ?? `The viewer answered ${response.status}.`, response.status);
  return body;
}

/** The JSON at `path`. */
export function get(path, query, signal) {
  return answer(path + withQuery(query), { signal });
}

/** Send JSON (or, with `type`, text as it is) and return the answer. JSON is sent even where the page is left. */
export function send(method, path, body, type = "application/json") {
  const keepalive = type === "application/json";
  const text = keepalive ? JSON.stringify(body ?? {}) : body;
  return answer(path, { method, headers: { "content-type": type }, body: text, keepalive });
}

/**
 * The JSON at `path`, asked again when `path` changes: {data, error, loading, reload, put}.
 * While another answer is on its way, `data` is still the old one; `put` replaces it by hand.
 */
export function useData(path) {
  const [state, setState] = useState({ path: null, data: null, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path === null) return undefined;
    const abort = new AbortController();
    get(path, null, abort.signal)
      .then((data) => setState({ path, data, error: null }))
      .catch(
        (error) =>
          error.name === "AbortError" ||
          setState((old) => ({ path, data: old.path === path ? old.data : null, error })),
      );
    return () => abort.abort();
  }, [path, round]);
  const reload = useCallback(() => setRound((n) => n + 1), []);
  const put = useCallback((data) => setState((old) => ({ ...old, data })), []);
  return { ...state, loading: state.path !== path, reload, put };
}

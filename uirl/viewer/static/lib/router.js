// Addresses of the pages: what stands after the # of the URL, read and written in one place.

import { useEffect, useState } from "../vendor/htm-preact.js";

/**
 * What an address shows: {page, key, id, turn, group, query}.
 * Pages: "runs", "run", "compare", "trajectories", "trajectory", "group", "unknown".
 */
export function parse(hash) {
  const [path, search = ""] = hash.replace(/^#/, "").split("?", 2);
  const query = new URLSearchParams(search);
  const parts = path.split("/").filter(Boolean).map(decoded);
  if (parts.length === 0) return { page: "runs", query };
  if (parts[0] === "compare")
    return { page: "compare", keys: (query.get("runs") ?? "").split(",").filter(Boolean).map(decoded), query };
  if (parts[0] !== "run" || parts.length < 2) return { page: "unknown", query };
  const [, key, what, id, turn] = parts;
  if (what === undefined) return { page: "run", key, query };
  if (what === "trajectories") return { page: "trajectories", key, query };
  if (what === "t" && id) return { page: "trajectory", key, id, turn: whole(turn), query };
  if (what === "g" && id) return { page: "group", key, group: id, query };
  return { page: "unknown", query };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a % that begins no code: taken as it stands
  }
}

function whole(text) {
  return /^\d+$/.test(text ?? "") ? Number(text) : 0;
}

const code = encodeURIComponent;

export const href = {
  runs: () => "#/",
  run: (key) => `#/run/${code(key)}`,
  compare: (keys) => `#/compare?runs=${code(keys.map(code).join(","))}`,
  trajectories: (key, query) => `#/run/${code(key)}/trajectories${withQuery(query)}`,
  trajectory: (key, id, turn = 0) => `#/run/${code(key)}/t/${code(id)}/${turn}`,
  group: (key, group) => `#/run/${code(key)}/g/${code(group)}`,
};

/** "?a=1&b=2" of the values that are set; "" where none is. */
export function withQuery(query) {
  const set = Object.entries(query ?? {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return set.length ? `?${new URLSearchParams(set)}` : "";
}

/** Go to another page; with `replace` the page before cannot be reached by going back. */
export function go(address, { replace = false } = {}) {
  if (!replace) {
    location.hash = address;
    return;
  }
  history.replaceState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** The route of the address bar, followed as it changes. */
export function useRoute() {
  const [route, setRoute] = useState(() => parse(location.hash));
  useEffect(() => {
    const follow = () => setRoute(parse(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}

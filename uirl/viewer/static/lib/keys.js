// The keyboard: pages name their keys while they are shown, and the help page lists what is named now.

import { useEffect, useRef } from "../vendor/htm-preact.js";

const layers = [];
const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", " ": "space", Escape: "esc" };

/** How a key is written for people. */
export function keyName(key) {
  return NAMES[key] ?? key;
}

/** All keys that do something now: [{key, text}], the newest page's first, each key once. */
export function keysNow() {
  const seen = new Map();
  for (const layer of [...layers].reverse()) {
    for (const binding of layer.current) if (!seen.has(binding.key)) seen.set(binding.key, binding);
  }
  return [...seen.values()];
}

/** Let `bindings`, [{key, text, run}], be heard while the component is shown. */
export function useKeys(bindings) {
  const layer = useRef(bindings);
  layer.current = bindings;
  useEffect(() => {
    layers.push(layer);
    return () => layers.splice(layers.indexOf(layer), 1);
  }, []);
}

function writing(target) {
  if (target.closest?.("dialog[open]")) return true;
  if (target.isContentEditable || target.tagName === "TEXTAREA" || target.tagName === "SELECT") return true;
  return target.tagName === "INPUT" && !["checkbox", "button", "file"].includes(target.type);
}

function heard(event) {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (writing(event.target)) {
    if (event.key === "Escape" && event.target.tagName !== "DIALOG") event.target.blur();
    return;
  }
  if (["Enter", " "].includes(event.key) && event.target.closest?.("a, button, summary, label")) return;
  const binding = keysNow().find((one) => one.key === event.key);
  if (binding === undefined) return;
  event.preventDefault();
  binding.run();
}

addEventListener("keydown", heard);

// The pages' `html`: whatever is written between tags or in a word of an element is shown with the characters that
// cannot be seen as their codes. What a run says cannot get past it: no other file takes `html` from elsewhere.

import { html as plain } from "../vendor/htm-preact.js";
import { visible } from "./format.js";

const SAID = ["title", "alt", "label", "placeholder", "aria-label"];
const done = new WeakSet();

function seen(child) {
  if (typeof child === "string") return visible(child);
  if (Array.isArray(child)) return child.map(seen);
  if (child === null || typeof child !== "object" || done.has(child)) return child;
  done.add(child);
  const { props, type } = child;
  if (!props) return child;
  if (props.children !== undefined) props.children = seen(props.children);
  if (typeof type === "string")
    for (const name of SAID) if (typeof props[name] === "string") props[name] = visible(props[name]);
  return child;
}

/** A tagged template of HTML, as preact draws it. */
export function html(...parts) {
  return seen(plain(...parts));
}

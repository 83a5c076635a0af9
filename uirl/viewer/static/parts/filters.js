// The filters over the table of trajectories. Each is a word of the address, so a filtered list is a link.

import { useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { short } from "../lib/format.js";

const TYPING_MS = 250;
const MOST_TASKS = 500;

/** A field whose text is used when typing has stopped. */
function Typed({ value, change, ...rest }) {
  const [text, setText] = useState(value);
  const timer = useRef(null);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const typed = (event) => {
    const now = event.target.value;
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => change(now), TYPING_MS);
  };
  return html`<input ...${rest} value=${text} onInput=${typed} />`;
}

const FIXED = {
  success: [
    ["true", "solved"],
    ["false", "not solved"],
    ["null", "not said"],
  ],
  verdict: [
    ["true", "passed"],
    ["false", "failed"],
    ["none", "none"],
  ],
  label: [
    ["passed", "passed"],
    ["failed", "failed"],
    ["none", "none"],
  ],
  flag: [
    ["repeated", "repeated"],
    ["garbled", "garbled"],
  ],
};
const FACETS = ["stop_reason", "failure", "split", "level"];
const TEXTS = { success: "solved", stop_reason: "end" };
const BESIDE = {
  failure: [
    ["none", "none"],
    ["any", "any kind"],
  ],
};

function Select({ name, text, value, options, change }) {
  if (options.length === 0 && !value) return null;
  const known = options.some(([one]) => one === value) || !value ? options : [[value, value], ...options];
  return html`
    <label class=${value ? "set" : ""}>
      ${text}
      <select name=${name} onChange=${(e) => change({ [name]: e.target.value })}>
        <option value="" selected=${!value}>any</option>
        ${known.map(
          ([one, words]) => html`<option key=${one} value=${one} selected=${one === value}>${words}</option>`,
        )}
      </select>
    </label>
  `;
}

/** Values and counts of a facet as options; `said`: without null, for which there is a word of its own. */
function counted(pairs, said) {
  return (pairs ?? [])
    .filter(([value]) => value !== null || !said)
    .map(([value, count]) => [String(value), `${value ?? "none"} (${count})`]);
}

function facetChoices(name, facets) {
  return [...(BESIDE[name] ?? []), ...counted(facets?.[name], name in BESIDE)];
}

/** A task that is known is asked for by name, anything else as the beginning of names. */
function taskQuery(text, tasks) {
  const exact = tasks.some(([one]) => one === text);
  return { task: exact ? text : "", task_prefix: exact ? "" : text };
}

const NAMES = [
  "q",
  "task",
  "task_prefix",
  "success",
  "verdict",
  "label",
  "stop_reason",
  "failure",
  "split",
  "level",
  "step_from",
  "step_to",
  "group",
  "flag",
];

function Search({ text, change }) {
  return html`
    <label class="find">
      <span class="hidden">search task, goal and replies</span>
      <${Typed}
        id="search"
        type="search"
        placeholder="search task, goal, replies  /"
        value=${text}
        change=${(q) => change({ q })}
      />
    </label>
  `;
}

function Tasks({ text, tasks, change }) {
  const use = (typed) => change(taskQuery(typed, tasks));
  return html`
    <label class=${text ? "set" : ""}>
      task
      <${Typed} list="tasks" placeholder="any" value=${text} change=${use} />
    </label>
    <datalist id="tasks">
      ${tasks.slice(0, MOST_TASKS).map(([one, count]) => html`<option key=${one} value=${one}>${count}</option>`)}
    </datalist>
  `;
}

function Steps({ from, to, change }) {
  const field = (name, word, value) => html`
    <${Typed}
      class="short"
      type="number"
      min="0"
      placeholder=${word}
      aria-label=${`${word} step`}
      value=${value}
      change=${(typed) => change({ [name]: typed })}
    />
  `;
  return html`
    <label class=${from || to ? "set" : ""}>
      step ${field("step_from", "from", from)} ${field("step_to", "to", to)}
    </label>
  `;
}

export function Filters({ query, change, facets }) {
  const get = (name) => query.get(name) ?? "";
  const choices = {
    success: FIXED.success,
    ...Object.fromEntries(FACETS.map((name) => [name, facetChoices(name, facets)])),
    verdict: FIXED.verdict,
    label: FIXED.label,
    flag: FIXED.flag,
  };
  const select = ([name, options]) => html`
    <${Select}
      key=${name}
      name=${name}
      text=${TEXTS[name] ?? name}
      value=${get(name)}
      options=${options}
      change=${change}
    />
  `;
  const clear = () => change(Object.fromEntries(NAMES.map((name) => [name, ""])));
  return html`
    <form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
      <${Search} text=${get("q")} change=${change} />
      <${Tasks} text=${get("task") || get("task_prefix")} tasks=${facets?.task_id ?? []} change=${change} />
      ${Object.entries(choices).map(select)}
      <${Steps} from=${get("step_from")} to=${get("step_to")} change=${change} />
      ${get("group") && html`<span class="chip">group ${short(get("group"))}</span>`}
      ${
        NAMES.some((name) => query.has(name)) &&
        html`<button type="button" class="link" onClick=${clear}>Clear</button>`
      }
    </form>
  `;
}

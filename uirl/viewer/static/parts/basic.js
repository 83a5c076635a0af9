// Small parts that all pages share. Whatever a run says is set as text: no part of these pages makes HTML from strings.

import { useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { keyName, keysNow } from "../lib/keys.js";
import { NONE, plain } from "../lib/format.js";

/** A short word in a frame; `tone`: "good", "bad", "warn", "quiet" or none. */
export function Chip({ tone = "", title, children }) {
  return html`<span class=${`chip ${tone}`} title=${title}>${children}</span>`;
}

/** Whether something was solved: passed, failed or not said. */
export function Outcome({ value, words = ["passed", "failed", "not said"] }) {
  if (value === true)
    return html`<${Chip} tone="good">✓ ${words[0]}<//>`;
  if (value === false)
    return html`<${Chip} tone="bad">✗ ${words[1]}<//>`;
  return html`<${Chip} tone="quiet">${NONE} ${words[2]}<//>`;
}

/** What went wrong, in the server's words, and a way to try again. */
export function Problem({ error, retry }) {
  if (!error) return null;
  return html`
    <div class="problem" role="alert">
      <p>${error.message}</p>
      ${retry && html`<button onClick=${retry}>Try again</button>`}
    </div>
  `;
}

/** Where nothing is to be seen, and why. */
export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

export function Busy({ what = "Loading" }) {
  return html`<p class="busy" role="status">${what} …</p>`;
}

/** One figure with its name below. */
export function Figure({ name, children, title }) {
  return html`<div class="figure" title=${title}><dt>${name}</dt><dd>${children}</dd></div>`;
}

const LINES = 14;
const CHARACTERS = 1200;
const PIECE = 200_000;

/** The beginning of a long text, in whole characters. */
function beginning(text, lines, characters) {
  const cut = text.split("\n", lines + 1);
  const few = cut.length > lines ? cut.slice(0, lines).join("\n") : text;
  return few.length > characters ? Array.from(few.slice(0, characters)).join("") : few;
}

/** A text; one that is long is scrolled in a window of its own, also by keys. */
function Pre({ text, label, more }) {
  const tall = text.length > CHARACTERS || text.split("\n", LINES + 1).length > LINES;
  const scrolled = tall ? { tabindex: 0, role: "group", "aria-label": label } : {};
  return html`<pre class=${tall ? "text tall" : "text"} ...${scrolled}>${text}${more && "…"}</pre>`;
}

/** A text, the long ones folded; `value` that is no text is shown as JSON. */
export function Text({ value, lines = LINES, characters = CHARACTERS, label = "text" }) {
  const [shown, setShown] = useState(0);
  const text = plain(value);
  const start = beginning(text, lines, characters);
  if (start.length === text.length)
    return html`<${Pre} text=${text} label=${label} />`;
  const now = shown ? text.slice(0, shown) : start;
  const rest = text.length - now.length;
  return html`
    <div class="folded">
      <${Pre} text=${now} label=${label} more=${rest > 0} />
      <div class="row">
        ${rest > 0 && html`
          <button class="link" aria-expanded="false" onClick=${() => setShown(now.length + PIECE)}>
            Show ${rest > PIECE ? "more of" : "all of"} this ${label} (${text.length.toLocaleString("en")} characters)
          </button>
        `}
        ${shown > 0 && html`<button class="link" aria-expanded="true" onClick=${() => setShown(0)}>Fold</button>`}
      </div>
    </div>
  `;
}

/** A button that copies `text` and says so. */
export function Copy({ text, children, title }) {
  const [done, setDone] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      setDone("Copied");
    } catch {
      setDone("The browser refused");
    }
    setTimeout(() => setDone(""), 1500);
  };
  return html`<button onClick=${copy} title=${title}>${done || children}</button>`;
}

/** A window over the page: `open` shows it, Escape or a click beside it calls `close`. */
export function Dialog({ open, close, title, children, kind = "" }) {
  const dialog = useRef(null);
  useEffect(() => {
    if (open && !dialog.current.open) dialog.current.showModal();
    if (!open && dialog.current.open) dialog.current.close();
  }, [open]);
  const beside = (event) => event.target === dialog.current && close();
  return html`
    <dialog ref=${dialog} class=${kind} aria-label=${title} onClose=${close} onClick=${beside}>
      ${open && html`
        <div class="dialog">
          <header>
            <h2>${title}</h2>
            <button onClick=${close}>Close</button>
          </header>
          ${children}
        </div>
      `}
    </dialog>
  `;
}

/** The keys that do something on this page. */
export function Help({ open, close }) {
  const keys = open ? keysNow() : [];
  return html`
    <${Dialog} open=${open} close=${close} title="Keys">
      <dl class="keys">
        ${keys.map(({ key, text }) => html`<div key=${key}><dt><kbd>${keyName(key)}</kbd></dt><dd>${text}</dd></div>`)}
      </dl>
    <//>
  `;
}

/** A choice among few, as buttons in a row: `choices` are [value, text, title]. */
export function Choice({ label, value, choices, choose }) {
  return html`
    <div class="choice" role="group" aria-label=${label}>
      ${choices.map(([one, text, title]) => html`
        <button key=${one} title=${title} aria-pressed=${one === value ? "true" : "false"} onClick=${() => choose(one)}>
          ${text}
        </button>
      `)}
    </div>
  `;
}

/** Give the browser `content` to keep under `name`. */
export function download(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// A person's word on an episode: passed or failed, the turn of the error, a note.

import { html } from "../lib/html.js";
import { errorAt } from "../lib/labels.js";
import { date } from "../lib/format.js";
import { Chip } from "./basic.js";

const LONGEST_NOTE = 10000; // as in uirl/storage/labels.py

function Head({ labelled: { label, busy, error } }) {
  const state = busy ? (error ? "not stored" : "storing") : label && `${label.by ?? ""} ${date(label.time)}`;
  return html`
    <header>
      <h2>Your label</h2>
      <span class="grow"></span>
      <span class="dim" role="status">${state}</span>
    </header>
  `;
}

/** The card of an episode; `turns`: how many it has, as an error stands in one of them. */
export function LabelCard({ labelled, turn, turns }) {
  const { label, error, busy, note, change, remove, type, settle, again } = labelled;
  const pressed = (value) => (value ? "true" : "false");
  return html`
    <section class="card labels">
      <${Head} labelled=${labelled} />
      <div class="row">
        <button
          class="good"
          aria-pressed=${pressed(label?.passed === true)}
          onClick=${() => change({ passed: true, error_step: null })}
        >
          ✓ Passed
          <kbd>l</kbd>
        </button>
        <button class="bad" aria-pressed=${pressed(label?.passed === false)} onClick=${() => change({ passed: false })}>
          ✗ Failed
          <kbd>f</kbd>
        </button>
        ${turn < turns && html`
          <button aria-pressed=${pressed(label?.error_step === turn)} onClick=${() => change(errorAt(turn, label))}>
            Error in turn ${turn}
            <kbd>e</kbd>
          </button>
        `}
        ${label && html`<button class="link" onClick=${remove}>Remove</button>`}
      </div>
      ${Number.isInteger(label?.error_step) && html`<p><${Chip} tone="bad">error in turn ${label.error_step}<//></p>`}
      <textarea
        rows="2"
        aria-label="note"
        placeholder="Note"
        maxlength=${LONGEST_NOTE}
        value=${note}
        onInput=${(e) => type(e.target.value)}
        onBlur=${settle}
      ></textarea>
      <p class="problem" role="alert" hidden=${!error}>
        ${error && `Not stored: ${error.message}`}
        ${busy && html`<button onClick=${again}>Try again</button>`}
      </p>
    </section>
  `;
}

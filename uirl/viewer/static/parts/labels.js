// A person's word on an episode: passed or failed, the turn of the error, a note.

import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { of, send } from "../lib/api.js";
import { lastList } from "../lib/list.js";
import { date } from "../lib/format.js";
import { Chip } from "./basic.js";

/** Write a label, changed in `fields` against `old`; returns what the server has now. */
export function writeLabel(run, id, old, fields) {
  const { passed = null, error_step = null, note = "" } = { ...old, ...fields };
  return send("PUT", of(run, "trajectories", id, "label"), { passed, error_step, note });
}

/** The fields of one press of e: the error stands in this turn, and an episode with an error has failed. */
export function errorAt(turn, old) {
  return old?.error_step === turn ? { error_step: null } : { error_step: turn, passed: false };
}

/** The label of an episode and how it is changed: {label, error, change, remove}. */
export function useLabel(run, id, first) {
  const [state, setState] = useState({ label: first, error: null });
  useEffect(() => setState({ label: first, error: null }), [run, id, first]);
  const settle = async (promise) => {
    try {
      const label = await promise;
      lastList(run)?.relabel(id, label);
      setState({ label, error: null });
    } catch (error) {
      setState((old) => ({ ...old, error }));
    }
  };
  return {
    ...state,
    change: (fields) => settle(writeLabel(run, id, state.label, fields)),
    remove: () => settle(send("DELETE", of(run, "trajectories", id, "label")).then(() => null)),
  };
}

export function LabelCard({ labelled, turn }) {
  const { label, error, change, remove } = labelled;
  const [note, setNote] = useState(label?.note ?? "");
  useEffect(() => setNote(label?.note ?? ""), [label]);
  const pressed = (value) => (value ? "true" : "false");
  return html`
    <section class="card labels">
      <header>
        <h2>Your label</h2>
        <span class="grow"></span>
        ${
          label &&
          html`
            <span class="dim">${label.by ?? ""} ${date(label.time)}</span>
          `
        }
      </header>
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
        <button aria-pressed=${pressed(label?.error_step === turn)} onClick=${() => change(errorAt(turn, label))}>
          Error in turn ${turn}
          <kbd>e</kbd>
        </button>
        ${
          label &&
          html`
            <button class="link" onClick=${remove}>Remove</button>
          `
        }
      </div>
      ${
        Number.isInteger(label?.error_step) &&
        html`
          <p><${Chip} tone="bad">error in turn ${label.error_step}<//></p>
        `
      }
      <textarea
        rows="2"
        aria-label="note"
        placeholder="Note"
        value=${note}
        onInput=${(e) => setNote(e.target.value)}
        onBlur=${() => note !== (label?.note ?? "") && change({ note })}
      ></textarea>
      <p class="problem" role="alert" hidden=${!error}>${error?.message}</p>
    </section>
  `;
}

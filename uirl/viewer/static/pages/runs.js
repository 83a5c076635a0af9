// All runs: one row each, with what can be said at a glance; marked ones are laid over each other.

import { useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { useData } from "../lib/api.js";
import { useKeys } from "../lib/keys.js";
import { ago, date, number, percent, safeLink } from "../lib/format.js";
import { go, href } from "../lib/router.js";
import { Busy, Chip, Empty, Problem } from "../parts/basic.js";
import { HeldOut, NotFinite, State, stepOf } from "../parts/result.js";

const REFRESH_SECONDS = 5;

/** The list of runs, asked again every few seconds while the page is looked at. */
export function useRuns(seconds = REFRESH_SECONDS) {
  const asked = useData("/api/runs");
  useEffect(() => {
    const timer = setInterval(() => document.hidden || asked.reload(), 1000 * seconds);
    return () => clearInterval(timer);
  }, []);
  return asked;
}

function Row({ run, at, marked, mark }) {
  const served = safeLink(run.serve_url);
  const place = useRef(null);
  useEffect(() => {
    if (at) place.current.scrollIntoView({ block: "nearest" });
  }, [at]);
  return html`
    <tr aria-current=${at ? "true" : undefined} ref=${place}>
      <td><input type="checkbox" checked=${marked} onChange=${mark} aria-label=${`compare ${run.name}`} /></td>
      <th scope="row">
        <a href=${href.run(run.key)}><bdi>${run.name}</bdi></a>
        <span class="path" title=${run.path}><bdi>${run.path}</bdi></span>
      </th>
      <td>
        <${State} run=${run} />
        <${NotFinite} names=${run.nonfinite} />
        ${run.problem && html`<${Chip} tone="warn" title=${run.problem}>⚠ problem<//>`}
        ${served && html`<a class="chip" href=${served} target="_blank" rel="noopener noreferrer">screens ↗</a>`}
      </td>
      <td class="n">
        <span class="tag">step</span>
        ${stepOf(run.steps, run.planned)}
      </td>
      <td class="n">
        <a href=${href.trajectories(run.key)}>
          ${number(run.trajectories)}
          <span class="tag">trajectories</span>
        </a>
      </td>
      <td>
        <span class="tag">evaluation</span>
        <${HeldOut} run=${run} />
      </td>
      <td class="n dim">
        <span class="tag">training</span>
        ${percent(run.training_success)}
      </td>
      <td class="dim" title=${date(run.updated)}>${ago(run.updated)}</td>
      <td class="dim wide">${date(run.created)}</td>
    </tr>
  `;
}

function Head() {
  return html`
    <thead>
      <tr>
        <th><span class="hidden">compare</span></th>
        <th scope="col">run</th>
        <th scope="col">state</th>
        <th scope="col" class="n">step</th>
        <th scope="col" class="n">trajectories</th>
        <th scope="col" title="of the newest evaluation, or the last one of a run that has ended">
          success in evaluations
        </th>
        <th scope="col" class="n" title="of the episodes of the newest update">training success</th>
        <th scope="col">updated</th>
        <th scope="col" class="wide">begun</th>
      </tr>
    </thead>
  `;
}

export function Runs() {
  const { data, error, reload } = useRuns();
  const [marked, setMarked] = useState([]);
  const [at, setAt] = useState(0);
  const runs = data?.runs ?? [];
  const move = (by) => setAt((old) => Math.max(0, Math.min(old + by, runs.length - 1)));
  const compare = () => marked.length && go(href.compare(marked));
  const mark = (key) => setMarked((old) => (old.includes(key) ? old.filter((one) => one !== key) : [...old, key]));
  useKeys([
    { key: "j", text: "next run", run: () => move(1) },
    { key: "k", text: "previous run", run: () => move(-1) },
    { key: "Enter", text: "open the run", run: () => runs[at] && go(href.run(runs[at].key)) },
    { key: "x", text: "mark the run for comparison", run: () => runs[at] && mark(runs[at].key) },
    { key: "c", text: "compare the marked runs", run: compare },
  ]);
  if (data === null && error)
    return html`<main class="page"><${Problem} error=${error} retry=${reload} /></main>`;
  if (data === null)
    return html`<main class="page"><${Busy} what="Looking for runs" /></main>`;
  if (runs.length === 0)
    return html`<main class="page"><${Empty}>No run here yet: uirl train configs/screen.yaml begins one.<//></main>`;
  const row = (run, i) => html`
    <${Row} key=${run.key} run=${run} at=${i === at} marked=${marked.includes(run.key)} mark=${() => mark(run.key)} />
  `;
  return html`
    <main class="page">
      <div class="bar">
        <h1>Runs</h1>
        <${Chip} tone="quiet">${runs.length}<//>
        <span class="grow"></span>
        <button disabled=${marked.length < 2} onClick=${compare}>
          Compare ${marked.length > 1 ? marked.length : ""}
        </button>
      </div>
      <${Problem} error=${error} />
      <div class="scroll" tabindex="0" role="region" aria-label="runs">
        <table class="list runs">
          <${Head} />
          <tbody>${runs.map(row)}</tbody>
        </table>
      </div>
    </main>
  `;
}

// One line of the table of trajectories.

import { html } from "../lib/html.js";
import { ago, date, number, short } from "../lib/format.js";
import { href } from "../lib/router.js";
import { Chip } from "./basic.js";

export const ROW = { wide: 32, narrow: 78 };
/** Heights of a row in pixels; style/pages.css has the same. */

export const COLUMNS = [
  { name: "#", key: "number", kind: "n" },
  { name: "step", key: "step", kind: "n" },
  { name: "task" },
  { name: "result" },
  { name: "reward", key: "reward", kind: "n" },
  { name: "turns", key: "turns", kind: "n" },
  { name: "end" },
  { name: "level" },
  { name: "label" },
  { name: "flags" },
  { name: "group" },
  { name: "when", key: "created" },
];

/** What became of an episode: a failure of ours, else the verdict or the environment's word. */
export function Result({ row }) {
  if (row.failure)
    return html`<${Chip} tone="warn" title="not evidence: something of ours broke">⚠ ${kindOf(row.failure)}<//>`;
  if (row.success === true)
    return html`<${Chip} tone="good">✓ solved<//>`;
  if (row.success === false)
    return html`<${Chip} tone="bad">✗ not solved<//>`;
  return html`<${Chip} tone="quiet">not said<//>`;
}

function kindOf(failure) {
  return typeof failure === "object" ? failure.kind : failure;
}

/** A person's label, as a short chip. */
export function Labelled({ label }) {
  if (label === null || label === undefined) return null;
  const { passed, error_step: step } = typeof label === "object" ? label : { passed: label };
  const words = [
    passed === true ? "✓ passed" : passed === false ? "✗ failed" : "",
    Number.isInteger(step) ? `error at ${step}` : "",
  ]
    .filter(Boolean)
    .join(", ");
  return html`
    <${Chip} tone=${passed === true ? "good" : passed === false ? "bad" : ""} title="a person's label">
      ${words || "note"}
    <//>
  `;
}

export function Row({ run, row, at, choose }) {
  return html`
    <tr aria-current=${at ? "true" : undefined} onClick=${choose}>
      <td class="n">${number(row.number)}</td>
      <td class="n">
        <span class="tag">step</span>
        ${number(row.step)}
      </td>
      <th scope="row" class="task">
        <a href=${href.trajectory(run, row.id)} title=${row.goal || row.task_id}><bdi>${row.task_id}</bdi></a>
        ${row.split && row.split !== "train" && html`<${Chip} tone="quiet">${row.split}<//>`}
      </th>
      <td><${Result} row=${row} /></td>
      <td class="n">
        <span class="tag">reward</span>
        ${number(row.reward, 3)}
      </td>
      <td class="n">
        ${number(row.turns)}
        <span class="tag">turns</span>
      </td>
      <td class="dim">${row.stop_reason ?? "running"}</td>
      <td class="dim wide">${row.level ?? ""}</td>
      <td><${Labelled} label=${row.label} /></td>
      <td>
        ${(row.flags ?? []).map((flag) => html`<${Chip} key=${flag} tone="warn">${flag}<//>`)}
      </td>
      <td class="wide">
        ${row.group_id && html`<a class="mono dim" href=${href.group(run, row.group_id)}>${short(row.group_id)}</a>`}
      </td>
      <td class="dim wide" title=${date(row.created)}>${ago(row.created)}</td>
    </tr>
  `;
}

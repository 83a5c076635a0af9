// The fork view: the episodes of one group side by side, turns before the same screen in one column.

import { useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { of, useData } from "../lib/api.js";
import { useKeys } from "../lib/keys.js";
import { number, short } from "../lib/format.js";
import { errorAt, useLabels } from "../lib/labels.js";
import { go, href } from "../lib/router.js";
import { Busy, Chip, Empty, Problem } from "../parts/basic.js";
import { Fork } from "../parts/fork.js";
import { Labelled, Result } from "../parts/row.js";

/** Members as rows, the best first; the order within equals is the group's own. */
export function rowsOf(members) {
  const rank = (one) => (one.success === true ? 2 : one.success === false ? 0 : 1);
  return [...members].sort((a, b) => rank(b) - rank(a) || (b.reward ?? 0) - (a.reward ?? 0));
}

/** The turn of a member in a column (`ends`: what stood there at the end); null where it never saw that screen. */
export function turnAt(group, member, column) {
  const index = group.columns[column]?.screens[member.id];
  if (index === null || index === undefined) return null;
  if (member.final?.index === index) return { ...member.final, ends: true };
  return member.turns.find((turn) => turn.index === index) ?? null;
}

function Hole({ selected, fork, place, choose }) {
  return html`
    <td class=${`hole ${fork}`} aria-selected=${selected ? "true" : "false"} ref=${place} onClick=${choose}>
      <span class="hidden">not here</span>
    </td>
  `;
}

/** The picture of a turn: one click chooses its cell, two open it. */
function Frame({ run, member, turn }) {
  const address = href.trajectory(run, member.id, turn.index);
  const hash = turn.images.at(-1);
  const once = (event) => event.detail === 1 && !event.ctrlKey && !event.metaKey && event.preventDefault();
  const image = html`<img loading="lazy" src=${of(run, "images", hash, "small")} alt="" />`;
  const words = html`<span class="noimage">${(turn.observation_text ?? "").slice(0, 80) || "no picture"}</span>`;
  return html`
    <a href=${address} tabindex="-1" onClick=${once} onDblClick=${() => go(address)}>
      <span class="hidden">turn ${turn.index} of ${short(member.id)}</span>
      ${hash ? image : words}
    </a>
  `;
}

function Cell({ run, turn, member, selected, fork, parts, choose }) {
  const place = useRef(null);
  useEffect(() => {
    if (selected) place.current?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [selected]);
  const column = fork ? "fork" : "";
  if (turn === null)
    return html`<${Hole} selected=${selected} fork=${column} place=${place} choose=${choose} />`;
  const wrong = !turn.ends && member.label?.error_step === turn.index;
  return html`
    <td class=${column} aria-selected=${selected ? "true" : "false"} ref=${place} onClick=${choose}>
      <${Frame} run=${run} member=${member} turn=${turn} />
      <span class="under">
        <b>${turn.index}</b>
        ${wrong && html`<${Chip} tone="bad">error<//>`}
        ${parts && !wrong && html`<${Chip} tone="warn">parts<//>`}
        <span class="what" title=${turn.action_text}>${turn.ends ? "end" : turn.action_text}</span>
      </span>
    </td>
  `;
}

function MemberHead({ run, member }) {
  return html`
    <th scope="row">
      <a class="mono" href=${href.trajectory(run, member.id)}>${short(member.id)}</a>
      <${Result} row=${member} />
      <dl>
        <div>
          <dt>reward</dt>
          <dd>${number(member.reward, 3)}</dd>
        </div>
        <div>
          <dt>advantage</dt>
          <dd class=${member.advantage > 0 ? "plus" : member.advantage < 0 ? "minus" : ""}>
            ${number(member.advantage, 3)}
          </dd>
        </div>
      </dl>
      <${Labelled} label=${member.label} />
    </th>
  `;
}

function GridHead({ columns, forks }) {
  const cell = (column, c) => html`
    <th key=${c} scope="col" class=${forks.has(c) ? "fork" : ""}>
      ${
        forks.has(c)
          ? html`<${Chip} tone="warn">fork<//>`
          : column.same
            ? c
            : html`<span title="screens that only one episode saw">${c} ≠</span>`
      }
    </th>
  `;
  return html`<thead><tr><th scope="col"><span class="hidden">episode</span></th>${columns.map(cell)}</tr></thead>`;
}

function Grid({ run, group, rows, at, setAt }) {
  const forks = new Set(group.forks.map((fork) => fork.column));
  const parting = new Map(group.forks.map((fork) => [fork.failed, fork.column]));
  const cell = (member, r, c) => html`
    <${Cell}
      key=${c}
      run=${run}
      member=${member}
      turn=${turnAt(group, member, c)}
      fork=${forks.has(c)}
      parts=${parting.get(member.id) === c}
      selected=${at[0] === r && at[1] === c}
      choose=${() => setAt([r, c])}
    />
  `;
  const line = (member, r) => html`
    <tr key=${member.id}>
      <${MemberHead} run=${run} member=${member} />
      ${group.columns.map((_, c) => cell(member, r, c))}
    </tr>
  `;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="siblings by screen">
      <table class="group" role="grid">
        <${GridHead} columns=${group.columns} forks=${forks} />
        <tbody>${rows.map(line)}</tbody>
      </table>
    </div>
  `;
}

function useGroupKeys({ run, group, rows, at, setAt, labels }) {
  const member = rows[at[0]];
  const turn = member ? turnAt(group, member, at[1]) : null;
  const move = (down) => setAt([Math.max(0, Math.min(at[0] + down, rows.length - 1)), at[1]]);
  const step = (right) => {
    for (let c = at[1] + right; c >= 0 && c < group.columns.length; c += right)
      if (member && turnAt(group, member, c) !== null) return setAt([at[0], c]);
    return undefined;
  };
  useKeys([
    { key: "j", text: "next episode", run: () => move(1) },
    { key: "k", text: "previous episode", run: () => move(-1) },
    { key: "ArrowDown", text: "next episode", run: () => move(1) },
    { key: "ArrowUp", text: "previous episode", run: () => move(-1) },
    { key: "ArrowRight", text: "next screen", run: () => step(1) },
    { key: "ArrowLeft", text: "previous screen", run: () => step(-1) },
    {
      key: "Enter",
      text: "open this turn",
      run: () => member && go(href.trajectory(run, member.id, turn?.index ?? 0)),
    },
    {
      key: "e",
      text: "label: the error is in this turn",
      run: () => turn && !turn.ends && labels.change(member, errorAt(turn.index, member.label)),
    },
    { key: "l", text: "label: passed", run: () => member && labels.change(member, { passed: true, error_step: null }) },
    { key: "f", text: "label: failed", run: () => member && labels.change(member, { passed: false }) },
    { key: "u", text: "remove the label", run: () => member && labels.remove(member) },
    { key: "Escape", text: "all trajectories", run: () => go(href.trajectories(run)) },
  ]);
}

function Hint({ fork, members }) {
  const more = Math.max(0, ...members.filter((one) => one.played > one.turns.length).map((one) => one.turns.length));
  const parted = fork ? "At the fork the same screen was answered in two ways." : "This group has no fork.";
  return html`
    <p class="hint">
      A column is one screen (≠: screens that only one episode saw); an empty place: the episode never stood before
      it.${" "} ${parted} Enter or a double click opens a turn, e labels the error.${" "}
      ${more > 0 ? `The first ${more} turns of each episode are shown.` : ""}
    </p>
  `;
}

/** Where the reader begins: at the first fork, in the row of the episode that went wrong there. */
function beginning(group, rows) {
  const fork = group.forks[0];
  if (!fork) return [0, 0];
  const row = rows.findIndex((one) => one.id === fork.failed);
  return [Math.max(row, 0), fork.column];
}

function Shown({ run, group }) {
  const labels = useLabels(run, group.members);
  const rows = useMemo(() => rowsOf(labels.members), [labels.members]);
  const [at, setAt] = useState(() => beginning(group, rows));
  useGroupKeys({ run, group, rows, at, setAt, labels });
  return html`
    <main class="page">
      <div class="bar">
        <h1><bdi>${group.task_id}</bdi></h1>
        <${Chip} tone="quiet">group ${short(group.group_id)}<//>
        <span class="dim">${group.count} ${group.count === 1 ? "episode" : "episodes"}, ${group.solved} solved</span>
        <span class="grow"></span>
        <a class="button" href=${href.trajectories(run, { group: group.group_id })}>As a list</a>
      </div>
      <${Problem} error=${labels.error} />
      ${
        group.count > rows.length &&
        html`<p class="note">The first ${rows.length} of ${group.count} episodes are shown here. The list has all.</p>`
      }
      <${Hint} fork=${group.forks.length > 0} members=${group.members} />
      ${
        rows.length === 0
          ? html`<${Empty}>This group has no episodes.<//>`
          : html`<${Grid} run=${run} group=${group} rows=${rows} at=${at} setAt=${setAt} />`
      }
      ${group.forks.length > 0 && html`<${Fork} run=${run} group=${group} rows=${rows} label=${labels.change} />`}
    </main>
  `;
}

export function Group({ run, group: id }) {
  const { data, error, reload } = useData(of(run, "groups", id));
  if (error && data === null)
    return html`<main class="page"><${Problem} error=${error} retry=${reload} /></main>`;
  if (data === null)
    return html`<main class="page"><${Busy} what="Aligning the group" /></main>`;
  return html`<${Shown} key=${data.group_id} run=${run} group=${data} />`;
}

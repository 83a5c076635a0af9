// At the fork of a group: the same screen, two answers, and what became of each.

import { useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { of, useData } from "../lib/api.js";
import { number, short } from "../lib/format.js";
import { errorAt } from "../lib/labels.js";
import { href } from "../lib/router.js";
import { Busy, Choice, Outcome, Problem, Text } from "./basic.js";
import { Picture } from "./picture.js";
import { Result } from "./row.js";
import { Call, pairs } from "./turn.js";

const MOST_PAIRS = 12; // offered as buttons

function Verdict({ verdict }) {
  if (verdict === null || verdict === undefined)
    return html`<p class="dim">No verdict.</p>`;
  if (typeof verdict === "boolean")
    return html`<p><${Outcome} value=${verdict} /></p>`;
  return html`
    <p class="row">
      <${Outcome} value=${verdict.passed} />
      <span class="dim">${verdict.verifier}</span>
    </p>
    ${verdict.reason && html`<${Text} value=${verdict.reason} lines=${6} characters=${500} label="reason" />`}
  `;
}

function SideHead({ run, member, index, label }) {
  const wrong = member.label?.error_step === index;
  const mark = () => label(member, errorAt(index, member.label));
  return html`
    <header>
      <h2><a class="mono" href=${href.trajectory(run, member.id, index)}>${short(member.id)}</a></h2>
      <${Result} row=${member} />
      <span class="grow"></span>
      <button class="bad" aria-pressed=${wrong ? "true" : "false"} onClick=${mark}>Error here</button>
    </header>
  `;
}

function SideFacts({ member, index }) {
  const tone = member.advantage > 0 ? "plus" : member.advantage < 0 ? "minus" : "";
  const facts = [
    ["turn", index],
    ["reward", number(member.reward, 3)],
    [
      "advantage",
      html`<b class=${tone}>${number(member.advantage, 3)}</b>`,
    ],
  ];
  return html`
    <p class="row facts">
      ${facts.map(
        ([name, value]) => html`<span class="fact" key=${name}><span class="dim">${name}</span>${value}</span>`,
      )}
    </p>
  `;
}

/** What an episode answered at the fork, and what became of it. */
function Answer({ turn, verdict }) {
  const thought = html`
    <div class="part thought">
      <h3>Thought</h3>
      <${Text} value=${turn?.thought} lines=${8} characters=${600} />
    </div>
  `;
  return html`
    <div>
      ${turn?.thought && thought}
      ${turn?.calls.map((call, i) => html`<${Call} key=${i} call=${call} />`)}
      ${turn?.calls.length === 0 && html`<${Text} value=${turn.action_text} />`}
      <h3>Verdict</h3>
      <${Verdict} verdict=${verdict} />
    </div>
  `;
}

function Side({ run, member, index, label }) {
  const there = index < member.turns.length;
  const { data: turn, error, loading } = useData(there ? of(run, "trajectories", member.id, "turns", index) : null);
  if (there && (turn === null || loading)) {
    const waiting = error
      ? html`<${Problem} error=${error} />`
      : html`<${Busy} what="Reading the turn" />`;
    return html`<section class="card">${waiting}</section>`;
  }
  const shown = turn ? pairs(turn).find((one) => !one.old) : undefined;
  const picture = () => html`
    <${Picture}
      src=${of(run, "images", shown.hash)}
      size=${shown.fed?.raw_size ?? null}
      marks=${shown.marks}
      which="raw"
      name="screenshot"
    />
  `;
  return html`
    <section class="card side">
      <${SideHead} run=${run} member=${member} index=${index} label=${label} />
      <${SideFacts} member=${member} index=${index} />
      <div class="sides">
        ${shown && picture()}
        <${Answer} turn=${turn} verdict=${member.verdict} />
      </div>
    </section>
  `;
}

/** Both sides of a fork, what succeeded on the left; where several episodes went wrong, a choice among them. */
export function Fork({ run, group, rows, label }) {
  const [chosen, setChosen] = useState(0);
  const member = (id) => rows.find((one) => one.id === id);
  const forks = group.forks.filter((fork) => member(fork.failed) && member(fork.successful));
  if (forks.length === 0) return null;
  const { failed, successful, at, other } = forks[Math.min(chosen, forks.length - 1)];
  const choices = forks.slice(0, MOST_PAIRS).map((fork, i) => [i, `${short(fork.failed)} at ${fork.at}`]);
  const side = ([id, index]) => html`
    <${Side} key=${id} run=${run} member=${member(id)} index=${index} label=${label} />
  `;
  return html`
    <section class="fork-section">
      <div class="bar">
        <h2>At the fork</h2>
        ${
          choices.length > 1 &&
          html`<${Choice} label="episode" value=${chosen} choose=${setChosen} choices=${choices} />`
        }
        ${forks.length > MOST_PAIRS && html`<span class="dim">of ${forks.length}</span>`}
      </div>
      <div class="forked">
        ${[[successful, other], [failed, at]].map(side)}
      </div>
    </section>
  `;
}

// One trajectory: the strip, the pictures of a turn, what was said, its tokens, the verdict, and a person's label.

import { useEffect, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { of, useData } from "../lib/api.js";
import { useKeys } from "../lib/keys.js";
import { errorAt, useLabel } from "../lib/labels.js";
import { lastList } from "../lib/list.js";
import { date, number, short } from "../lib/format.js";
import { go, href } from "../lib/router.js";
import { useTurn } from "../lib/turns.js";
import { Busy, Chip, Copy, Outcome, Problem, Text } from "../parts/basic.js";
import { LabelCard } from "../parts/labels.js";
import { Result } from "../parts/row.js";
import { Strip } from "../parts/strip.js";
import { Tokens, useTokens } from "../parts/tokens.js";
import { Final, Pictures, Said } from "../parts/turn.js";

const SPEEDS = [0.5, 1, 2, 4];
const FIGURE_KEY = "uirl-figure";

/** Go `by` places from episode `id` along the list that was looked at last, else by number. */
async function beside(run, id, data, by) {
  const list = lastList(run);
  let next = list === null ? undefined : await list.beside(id, by);
  if (next === undefined && data.id === id) next = by > 0 ? data.next : data.previous;
  if (!next) return;
  if (list !== null)
    list.at = Math.max(
      0,
      list.rows.findIndex((row) => row.id === next),
    );
  go(href.trajectory(run, next), { replace: true });
}

/** Turn by turn until the end, `speed` turns per second. */
function useReplay(turn, last, show) {
  const [playing, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(1);
  useEffect(() => {
    if (!playing) return undefined;
    if (turn >= last) {
      setPlaying(false);
      return undefined;
    }
    const timer = setTimeout(() => show(turn + 1), 1000 / speed);
    return () => clearTimeout(timer);
  }, [playing, turn, speed, last]);
  const toggle = () => {
    if (!playing && turn >= last) show(0);
    setPlaying(!playing);
  };
  return { playing, toggle, speed, setSpeed };
}

function Top({ run, data, turn, replay }) {
  const base = of(run, "trajectories", data.id);
  return html`
    <div class="bar top">
      <h1 title=${data.id}><bdi>${beginning(data.task.id, 160)}</bdi></h1>
      <${Result} row=${data} />
      <span class="grow"></span>
      <button class="main" onClick=${replay.toggle} aria-pressed=${replay.playing ? "true" : "false"}>
        ${replay.playing ? "❚❚ Pause" : "▶ Replay"}
      </button>
      <select aria-label="speed" value=${replay.speed} onChange=${(e) => replay.setSpeed(Number(e.target.value))}>
        ${SPEEDS.map((one) => html`<option key=${one} value=${one}>${one} / s</option>`)}
      </select>
      <${Copy}
        text=${() => new URL(href.trajectory(run, data.id, turn), location.href).href}
        title="a link to this turn"
      >
        Copy link
      <//>
      <a class="button" href=${`${base}/export.html`} download>HTML</a>
      ${data.group_id && html`<a class="button" href=${href.group(run, data.group_id)}>Group</a>`}
    </div>
  `;
}

/** What the episode was about: the goal of its task, else what the environment said first. */
function Goal({ data }) {
  const said = beginning(data.task.goal || data.opening, 600);
  const tall = said.length > 150;
  return html`<p class=${tall ? "goal tall" : "goal"} tabindex=${tall ? 0 : undefined}><bdi>${said}</bdi></p>`;
}

function beginning(text, most) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

function About({ data }) {
  const { sampling, policy } = data;
  const sampled =
    sampling &&
    Object.entries(sampling)
      .filter(([, value]) => value !== null)
      .map(([name, value]) => `${name} ${value}`)
      .join(", ");
  const facts = [
    [null, data.split],
    ["step", number(data.step)],
    ["reward", number(data.reward, 3)],
    ["end", data.stop_reason ?? "running"],
    ["level", data.level],
    ["model", policy?.model],
    ["version", policy?.version],
    ["sampled with", sampled],
    ["seed", data.task.seed],
    ["begun", date(data.created)],
    ["#", number(data.number)],
    ["id", short(data.id)],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return html`
    <${Goal} data=${data} />
    <p class="row facts">
      ${facts.map(([name, value]) => html`
        <span class="fact" key=${name}>
          ${name && html`<span class="dim">${name}</span>`}${value}
        </span>
      `)}
      ${(data.flags ?? []).map((flag) => html`<${Chip} key=${flag} tone="warn">${flag}<//>`)}
    </p>
    ${data.failure && html`
      <div class="problem">
        <p>
          <b>${data.failure.kind}</b>
          ${Number.isInteger(data.failure.turn) ? ` in turn ${data.failure.turn}` : ""}: not evidence.
        </p>
        <${Text} value=${data.failure.message} />
      </div>
    `}
  `;
}

function VerdictCard({ verdict, evidence, go: show }) {
  if (!verdict)
    return html`
      <section class="card">
        <header><h2>Verdict</h2></header>
        <p class="dim">Nobody judged this episode.</p>
      </section>
    `;
  const prefix = verdict.correct_prefix;
  return html`
    <section class="card verdict">
      <header>
        <h2>Verdict</h2>
        <${Outcome} value=${verdict.passed} />
        <span class="dim">score ${number(verdict.score, 3)}</span>
        <span class="grow"></span>
        <span class="dim">${verdict.verifier}</span>
      </header>
      ${verdict.reason && html`<${Text} value=${verdict.reason} label="reason" />`}
      ${Number.isInteger(prefix) && html`
        <p>
          The first ${prefix} turns were right.
          ${!verdict.passed && html`<button class="link" onClick=${() => show(prefix)}>Turn ${prefix}</button>`}
        </p>
      `}
      ${evidence && html`<details><summary>Evidence</summary><${Text} value=${evidence} label="evidence" /></details>`}
    </section>
  `;
}

function remembered() {
  try {
    return localStorage.getItem(FIGURE_KEY) ?? "log_prob";
  } catch {
    return "log_prob";
  }
}

function useFigure() {
  const [figure, set] = useState(remembered);
  const setFigure = (name) => {
    set(name);
    try {
      localStorage.setItem(FIGURE_KEY, name);
    } catch {
      // not remembered: the choice holds until the page is loaded again
    }
  };
  return [
    ["mask", "log_prob", "advantage", "ratio", "gap", "entropy"].includes(figure) ? figure : "log_prob",
    setFigure,
  ];
}

function useTrajectoryKeys({ run, id, data, turn, last, show, labelled, replay }) {
  const { change, label, remove } = labelled;
  const list = () => Object.fromEntries(new URLSearchParams(lastList(run)?.query ?? ""));
  // while the next episode is on its way, no key is for the one that still stands here
  const here = (act) => () => data.id === id && act();
  useKeys([
    { key: "j", text: "next trajectory", run: () => beside(run, id, data, 1) },
    { key: "k", text: "previous trajectory", run: () => beside(run, id, data, -1) },
    { key: "ArrowRight", text: "next turn", run: here(() => show(Math.min(turn + 1, last))) },
    { key: "ArrowLeft", text: "previous turn", run: here(() => show(Math.max(turn - 1, 0))) },
    { key: "Home", text: "first turn", run: here(() => show(0)) },
    { key: "End", text: "last turn", run: here(() => show(last)) },
    { key: "p", text: "replay, pause", run: here(replay.toggle) },
    { key: "l", text: "label: passed", run: here(() => change({ passed: true, error_step: null })) },
    { key: "f", text: "label: failed", run: here(() => change({ passed: false })) },
    {
      key: "e",
      text: "label: the error is in this turn",
      run: here(() => turn < data.turns.length && change(errorAt(turn, label))),
    },
    { key: "u", text: "remove the label", run: here(remove) },
    { key: "g", text: "its group", run: here(() => data.group_id && go(href.group(run, data.group_id))) },
    { key: "Escape", text: "the list", run: () => go(href.trajectories(run, list())) },
  ]);
}

function EpisodeFigures({ metrics }) {
  const entries = Object.entries(metrics ?? {});
  if (entries.length === 0) return null;
  const line = ([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${number(value)}</dd></div>`;
  return html`
    <details class="card">
      <summary>Figures of the episode</summary>
      <dl class="arguments">${entries.map(line)}</dl>
    </details>
  `;
}

function Checks({ checks }) {
  if (!checks || Object.keys(checks).length === 0) return null;
  return html`
    <details class="card">
      <summary>Checks of the task (the policy never sees them)</summary>
      <${Text} value=${checks} />
    </details>
  `;
}

/** What stands beside the pictures: the turn, the verdict, the label. */
function Beside({ data, now, turn, labelled, show }) {
  return html`
    <div class="right">
      ${now && html`<${Said} turn=${now} />`}
      <${VerdictCard} verdict=${data.verdict} evidence=${data.verdict_evidence} go=${show} />
      <${LabelCard} labelled=${labelled} turn=${turn} turns=${data.turns.length} />
      <${EpisodeFigures} metrics=${data.metrics} />
      <${Checks} checks=${data.task.checks} />
    </div>
  `;
}

/** The page of a trajectory that is here. */
function Shown({ run, id, data, asked }) {
  const last = data.final ? data.turns.length : Math.max(data.turns.length - 1, 0);
  const turn = Math.min(asked, last);
  const show = (index) => go(href.trajectory(run, data.id, index), { replace: true });
  const labelled = useLabel(run, data.id, data.label);
  const replay = useReplay(turn, last, show);
  const [figure, setFigure] = useFigure();
  const [context, setContext] = useState(false);
  const { turn: now, error, retry } = useTurn(run, data.id, turn, data.turns.length);
  useTrajectoryKeys({ run, id, data, turn, last, show, labelled, replay });
  const tokens = { figure, setFigure, context, setContext };
  const waiting = turn < data.turns.length && now === null && !error;
  const pictures = () => html`<${TurnPictures} run=${run} data=${data} now=${now} ...${tokens} />`;
  const end = () => html`<div class="left"><${Final} run=${run} final=${data.final} /></div>`;
  return html`
    <main class="page trajectory">
      <${Top} run=${run} data=${data} turn=${turn} replay=${replay} />
      <${About} data=${data} />
      <${Strip} run=${run} data=${data} turn=${turn} error=${labelled.label?.error_step} go=${show} />
      ${data.turns.length === 0 && html`<p class="empty">No turn was played.</p>`}
      <${Problem} error=${error} retry=${retry} />
      <div class="turn">
        ${waiting && html`<${Busy} what="Reading the turn" />`}
        ${now ? pictures() : turn >= data.turns.length && data.final && end()}
        <${Beside} data=${data} now=${now} turn=${turn} labelled=${labelled} show=${show} />
      </div>
    </main>
  `;
}

function TurnPictures({ run, data, now, ...rest }) {
  const asked = useTokens(run, data.id, now.index, rest.context);
  const fresh = asked.loading ? null : asked.data;
  return html`
    <div class="left">
      <${Pictures} run=${run} turn=${now} heat=${fresh?.heat ?? null} />
      <${Tokens} asked=${asked} ...${rest} />
    </div>
  `;
}

export function Trajectory({ run, id, turn }) {
  const { data, error, reload } = useData(of(run, "trajectories", id));
  if (error && data === null)
    return html`<main class="page"><${Problem} error=${error} retry=${reload} /></main>`;
  if (data === null)
    return html`<main class="page"><${Busy} what="Reading the trajectory" /></main>`;
  return html`<${Shown} run=${run} id=${id} data=${data} asked=${data.id === id ? turn : 0} />`;
}

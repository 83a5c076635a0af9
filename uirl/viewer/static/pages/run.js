// One run, or several laid over each other: charts that grow while it trains, its config and its summary.

import { useEffect, useMemo, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { of, useData } from "../lib/api.js";
import { useKeys } from "../lib/keys.js";
import { useLive } from "../lib/live.js";
import { phaseOf } from "../lib/series.js";
import { ago, number, percent, safeLink } from "../lib/format.js";
import { go, href } from "../lib/router.js";
import { Busy, Chip, Choice, Empty, Figure, Problem, Text } from "../parts/basic.js";
import { Chart } from "../parts/chart.js";
import { COLOURS } from "../parts/drawing.js";
import { HeldOut, Meter, NotFinite, Result, State, stepOf } from "../parts/result.js";
import { useRuns } from "./runs.js";

const REST = "more";
const MOST_RUNS = 8;

/** The charts of several runs as one list: those of the first, and what the others have beside them. */
export function chartsOf(answers) {
  const charts = new Map();
  for (const answer of answers) {
    for (const chart of answer.charts) {
      const old = charts.get(chart.title);
      const series = [...new Set([...(old?.series ?? []), ...chart.series])];
      charts.set(chart.title, { ...chart, ...old, series, band: old ? (old.band ?? chart.band) : chart.band });
    }
  }
  return [...charts.values()];
}

/** Newest value of a metric; null where there is none. */
function newest(run, metric) {
  return run.table.columns.get(metric)?.value.at(-1) ?? null;
}

/** The software of the newest part of a run in words; "" where it was not recorded. */
function softwareOf(origins) {
  const software = origins?.at(-1)?.software ?? {};
  const known = ["uirl", "torch", "transformers"].filter((name) => software[name]);
  return known.map((name) => `${name} ${software[name]}`).join(", ");
}

function Figures({ run, info, answer }) {
  const speed = newest(run, "tokens_per_second");
  const step = run.table.last?.step ?? info?.steps ?? null;
  const ended = Boolean(answer?.summary) || info?.state === "recorded";
  const software = softwareOf(answer?.versions);
  return html`
    <dl class="figures">
      <${Figure} name="state"><${State} run=${info} /><//>
      <${Figure} name="step">${stepOf(step, info?.planned)}<//>
      ${
        info &&
        !ended &&
        html`<${Figure} name="success in evaluations" title="of the newest evaluation"><${HeldOut} run=${info} /><//>`
      }
      <${Figure} name="training success" title="of the episodes of the newest update">
        ${percent(newest(run, "success") ?? info?.training_success)}
      <//>
      <${Figure} name="reward">${number(newest(run, "reward"), 3)}<//>
      <${Figure} name="trajectories">
        <a href=${href.trajectories(run.key)}>${number(info?.trajectories ?? null)}</a>
      <//>
      ${speed !== null && html`<${Figure} name="tokens/s">${number(Math.round(speed))}<//>`}
      <${Figure} name="updated">${ago(info?.updated)}<//>
      ${software && html`<${Figure} name="software">${software}<//>`}
    </dl>
  `;
}

function Controls({ axis, setAxis, weight, setWeight, runs, keys, search, setSearch }) {
  const others = (runs ?? []).filter((run) => !keys.includes(run.key));
  const add = (event) => event.target.value && go(href.compare([...keys, event.target.value]));
  return html`
    <div class="bar controls">
      <${Choice}
        label="horizontal axis"
        value=${axis}
        choose=${setAxis}
        choices=${[["step", "step"], ["time", "time"]]}
      />
      <label>
        smoothing
        <input
          type="range"
          min="0"
          max="0.98"
          step="0.02"
          value=${weight}
          onInput=${(e) => setWeight(Number(e.target.value))}
        />
        <output>${weight.toFixed(2)}</output>
      </label>
      <label class="find">
        <span class="hidden">Find a chart</span>
        <input
          id="search"
          type="search"
          placeholder="find a chart  /"
          value=${search}
          onInput=${(e) => setSearch(e.target.value)}
        />
      </label>
      <span class="grow"></span>
      ${others.length > 0 && html`
        <select aria-label="lay another run over this" onChange=${add}>
          <option value="">+ another run</option>
          ${others.map((run) => html`<option key=${run.key} value=${run.key}>${run.name}</option>`)}
        </select>
      `}
    </div>
  `;
}

function Overlaid({ runs, keys }) {
  if (keys.length < 2) return null;
  return html`
    <ul class="overlaid">
      ${runs.map((run) => html`
        <li key=${run.key}>
          <svg width="12" height="12" aria-hidden="true">
            <circle cx="6" cy="6" r="5" style=${{ fill: `var(${run.colour})` }} />
          </svg>
          <a href=${href.run(run.key)}>${run.name}</a>
          <button
            class="small"
            aria-label=${`take ${run.name} away`}
            onClick=${() => go(href.compare(keys.filter((key) => key !== run.key)))}
          >
            ✕
          </button>
        </li>
      `)}
    </ul>
  `;
}

/** The chart of one metric. */
function single(name) {
  const phase = phaseOf(name);
  const own = phase && { along: `${phase}/step`, unit: `by step of the ${phase.replaceAll("_", " ")}` };
  return { title: name, unit: "", series: [name], band: null, ...own };
}

/** Every metric of the rest in a chart of its own, folded. */
function Rest({ chart, wanted, ...shared }) {
  const [open, setOpen] = useState(false);
  const singles = useMemo(
    () => chart.series.map(single),
    [chart.series.join("\n")],
  );
  const shown = singles.filter(wanted);
  if (shown.length === 0) return null;
  const unfolded = open || shown.length < singles.length;
  return html`
    <section>
      <button class="section" aria-expanded=${unfolded ? "true" : "false"} onClick=${() => setOpen(!open)}>
        ${unfolded ? "▾" : "▸"} Other metrics
        <span class="dim">${shown.length}</span>
      </button>
      ${unfolded && html`
        <div class="charts">
          ${shown.map((one) => html`<${Chart} key=${one.title} chart=${one} ...${shared} />`)}
        </div>
      `}
    </section>
  `;
}

/** Charts that hold a metric which one of the runs has. */
function Charts({ charts, search, none, ...shared }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = (chart) =>
    words.every((word) => `${chart.title} ${chart.series.join(" ")}`.toLowerCase().includes(word));
  const main = charts.filter((chart) => chart.title !== REST && wanted(chart));
  const rest = charts.find((chart) => chart.title === REST);
  if (main.length === 0 && !rest)
    return html`<${Empty}>${words.length ? "No chart has this name." : none}<//>`;
  return html`
    <div class="charts">
      ${main.map((chart) => html`<${Chart} key=${chart.title} chart=${chart} ...${shared} />`)}
    </div>
    ${rest && html`<${Rest} chart=${rest} wanted=${wanted} ...${shared} />`}
  `;
}

/** Why there is no chart. */
function nothing(infos) {
  if (infos.length > 0 && infos.every((info) => info?.state === "recorded"))
    return "These episodes were recorded without training, so there are no curves. Their list is under Trajectories.";
  return "No metrics yet: the first row comes with the first update.";
}

function Papers({ answer }) {
  const parts = [
    ["Config", answer.config],
    ["Summary", answer.summary],
    ["Versions", answer.versions],
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return html`
    <section class="papers">
      ${parts.map(([name, value]) => html`
        <details key=${name}>
          <summary>${name}</summary>
          <${Text} value=${value} lines=${400} characters=${40000} label=${name.toLowerCase()} />
        </details>
      `)}
    </section>
  `;
}

/** The answers about all runs of `keys`, in their order; asked again when a new run is laid over. */
function useAnswers(keys) {
  const slots = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => useData(i < keys.length ? of(keys[i]) : null));
  const used = slots.slice(0, keys.length);
  return {
    answers: used.map((slot) => slot.data).filter(Boolean),
    error: used.find((slot) => slot.error)?.error,
    reload: () => used.forEach((slot) => slot.reload()),
  };
}

function Top({ runs, keys, info }) {
  const one = keys.length === 1;
  const live = safeLink(info?.serve_url);
  const links = () => html`
    <a class="button" href=${of(keys[0], "metrics.csv")} download>All metrics as CSV</a>
    <a class="button main" href=${href.trajectories(keys[0])}>Trajectories</a>
  `;
  const screens = html`<a class="button" href=${live} target="_blank" rel="noopener noreferrer">Screens now ↗</a>`;
  return html`
    <div class="bar">
      <h1><bdi>${one ? runs[0].name : `${keys.length} runs`}</bdi></h1>
      ${info?.problem && html`<${Chip} tone="warn" title=${info.problem}>⚠ ${info.problem}<//>`}
      <${NotFinite} names=${info?.nonfinite} whole />
      <span class="grow"></span>
      ${one && live && screens} ${one && links()}
    </div>
  `;
}

export function Run({ keys: asked }) {
  const keys = asked.slice(0, MOST_RUNS);
  const { data } = useRuns();
  const info = (key) => data?.runs.find((run) => run.key === key);
  const [runs, version] = useLive(keys, (key) => info(key)?.name ?? key, COLOURS);
  const { answers, error, reload } = useAnswers(keys);
  const names = runs.map((run) => run.table.columns.size).join(" ");
  const states = keys.map((key) => info(key)?.state ?? "").join(" ");
  // the server chooses charts by the metrics that there are, and a run that ends writes its summary
  useEffect(() => void (version > 0 && reload()), [names, states]);
  const [axis, setAxis] = useState("step");
  const [weight, setWeight] = useState(0);
  const [search, setSearch] = useState("");
  useKeys([
    { key: "/", text: "find a chart", run: () => document.getElementById("search")?.focus() },
    { key: "t", text: "trajectories of the run", run: () => go(href.trajectories(keys[0])) },
    { key: "s", text: "step or time along the axis", run: () => setAxis(axis === "step" ? "time" : "step") },
    { key: "Escape", text: "all runs", run: () => go(href.runs()) },
  ]);
  const charts = useMemo(() => chartsOf(answers), [JSON.stringify(answers.map((one) => [one.key, one.charts]))]);
  const lost = error ?? runs.find((run) => run.error)?.error;
  const one = keys.length === 1;
  const shared = { runs, axis, weight, version };
  const infos = keys.map(info);
  if (one && answers.length === 0 && error?.status === 404)
    return html`
      <main class="page">
        <${Problem} error=${error} retry=${reload} />
        <p><a href=${href.runs()}>All runs</a></p>
      </main>
    `;
  return html`
    <main class="page">
      <${Top} runs=${runs} keys=${keys} info=${info(keys[0])} />
      <${Problem} error=${lost} retry=${reload} />
      ${asked.length > MOST_RUNS && html`<p class="note">The first ${MOST_RUNS} of ${asked.length} runs are shown.</p>`}
      ${one && html`<${Result} run=${info(keys[0])} summary=${answers[0]?.summary} />`}
      ${one && html`<${Figures} run=${runs[0]} info=${info(keys[0])} answer=${answers[0]} />`}
      <${Overlaid} runs=${runs} keys=${keys} />
      <${Controls} ...${{ axis, setAxis, weight, setWeight, runs: data?.runs, keys, search, setSearch }} />
      ${
        answers.length < keys.length && !lost
          ? html`<${Busy} what="Reading metrics" />`
          : html`<${Charts} charts=${charts} search=${search} none=${nothing(infos)} ...${shared} />`
      }
      ${one && html`<${Meter} meter=${answers[0]?.summary?.meter} />`}
      ${one && answers.length === 1 && html`<${Papers} answer=${answers[0]} />`}
    </main>
  `;
}

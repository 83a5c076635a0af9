// What a run came to: its state, its success in evaluations, and the result at its end.

import { html } from "../lib/html.js";
import { NONE, duration, number, percent } from "../lib/format.js";
import { Chip, Figure } from "./basic.js";

/** The state of a run in a word; at which step it stands is said beside it. */
export function State({ run }) {
  const { state } = run ?? {};
  if (state === "live")
    return html`<span class="live"><i aria-hidden="true"></i>live</span>`;
  if (state === "stopped")
    return html`<span class="stopped" title="it wrote no summary, and no process writes to it">stopped</span>`;
  return html`<span class="dim">${state === undefined || state === "unknown" ? NONE : state}</span>`;
}

/** "7 of 400", or "7" where nobody says how many there will be. */
export function stepOf(step, planned) {
  return typeof planned === "number" ? `${number(step ?? null)} of ${number(planned)}` : number(step ?? null);
}

/** What stands behind a share of episodes of an evaluation, in words. */
function behind({ low, high, step, episodes, groups }) {
  return [
    low !== null && `95 % interval ${percent(low)} to ${percent(high)}`,
    typeof step === "number" && `at step ${number(step)}`,
    episodes && `${number(episodes)} episodes of ${number(groups)} instances`,
  ]
    .filter(Boolean)
    .join(", ");
}

/** A share with a bar and its number; `title`: what stands behind it. */
export function Share({ value, name, title }) {
  if (value === null || value === undefined)
    return html`<span class="dim">${NONE}</span>`;
  return html`
    <span class="share" title=${title}>
      <meter min="0" max="1" value=${value} aria-label=${name}></meter>
      ${percent(value)}
    </span>
  `;
}

export function HeldOut({ run }) {
  const found = run.held_out;
  return html`
    <${Share} value=${found?.value} name="success in evaluations" title=${found ? behind(found) : undefined} />
  `;
}

/** Metrics whose newest value is no finite number: the run has most likely diverged. */
export function NotFinite({ names, whole = false }) {
  if (!names?.length) return null;
  const said = names.join(", ");
  return html`
    <${Chip} tone="bad" title=${`no finite number in the newest row: ${said}`}>
      ⚠ not finite${whole ? `: ${said}` : ""}
    <//>
  `;
}

/** Low and high of an interval in per cent: "[67, 78]". */
function between(low, high) {
  return typeof low === "number" && typeof high === "number"
    ? `[${number(100 * low, 3)}, ${number(100 * high, 3)}]`
    : null;
}

/** "55 % → 73 %", as far as both are known. */
function fromTo(before, after, words) {
  return typeof before === "number" ? `${words(before)} → ${words(after)}` : words(after);
}

/** What the success of a run's evaluation may be called: held out only where the run says that it is. */
function whichSuccess(heldOut) {
  if (heldOut?.held_out === false) {
    return `success, NOT HELD OUT: ${number(heldOut.trained_on)} of ${number(heldOut.instances)} instances trained on`;
  }
  return heldOut?.held_out ? "held-out success" : "success in evaluations";
}

/** The result of a run that ended, from its summary. */
function Ended({ summary }) {
  const [low, high] = summary.success_after_interval ?? [];
  const controls = Object.entries(summary.controls ?? {});
  return html`
    <${Figure} name=${`${whichSuccess(summary.held_out)}, before → after`}>
      <b>${fromTo(summary.success_before, summary.success_after ?? null, percent)}</b>
      ${between(low, high) && html`${" "}<span class="dim" title="95 % interval">${between(low, high)}</span>`}
    <//>
    ${controls.map(([name, value]) => html`
      <${Figure} key=${name} name=${`control: ${name}`} title="without learning">
        ${summary.controls_metric === "reward" ? number(value, 3) : percent(value)}
      <//>
    `)}
    <${Figure} name="reward, before → after">
      ${fromTo(summary.reward_before, summary.reward_after ?? null, (value) => number(value, 3))}
    <//>
    <${Figure} name="trained on">
      ${trainedOn(summary)} episodes
      ${typeof summary.train_seconds === "number" ? ` in ${duration(summary.train_seconds)}` : ""}
    <//>
    <${Figure} name="why it stopped">${summary.stopped_because ?? NONE}<//>
  `;
}

/** How many of the episodes that were played the updates learned from. */
function trainedOn({ ledger, episodes }) {
  const played = number(episodes ?? null);
  return ledger && ledger.trained !== episodes ? `${number(ledger.trained)} of ${played}` : played;
}

/** The result of episodes that were recorded without training. */
function Recorded({ run }) {
  const { held_out: found, training_success: training } = run;
  return html`
    <${Figure} name=${found ? "success in evaluations" : "success"}>
      <b>${percent(found?.value ?? training)}</b>
      ${found && html`${" "}<span class="dim" title="95 % interval">${between(found.low, found.high)}</span>`}
    <//>
    ${found && html`
      <${Figure} name="episodes">
        ${number(found.episodes)} of ${number(found.groups)} ${found.groups === 1 ? "instance" : "instances"}
      <//>
    `}
    <${Figure} name="policy of step">${number(run.steps)}<//>
  `;
}

/** What the parts of a run took of its time and reached of its machine's limit; nothing while it trains. */
export function Meter({ meter }) {
  const parts = Object.entries(meter?.parts ?? {}).sort((a, b) => b[1].share_of_time - a[1].share_of_time);
  if (parts.length === 0) return null;
  const { device, precision, operations, bytes } = meter.machine ?? {};
  return html`
    <section class="meter" aria-label="where the time went">
      <h2>Where the time went</h2>
      <p class="dim">
        ${device} multiplies at ${number(operations / 1e9, 3)} GFLOP/s in ${precision} and reads
        ${" "}${number(bytes / 1e9, 3)} GB/s, as measured when the run began: less than the machine
        can do where other programs ran.
        ${
          typeof meter.screenshots_per_second === "number" &&
          html`${" "}An environment made ${number(meter.screenshots_per_second, 3)} screenshots/s.`
        }
      </p>
      <div class="scroll" tabindex="0" role="region" aria-label="parts of an update">
        <table class="list">
          <thead>
            <tr>
              <th scope="col">part</th>
              <th scope="col" class="n">seconds of an update</th>
              <th scope="col">share of the time</th>
              <th scope="col">share of the limit</th>
            </tr>
          </thead>
          <tbody>
            ${parts.map(([name, part]) => html`
              <tr key=${name}>
                <th scope="row">${name}</th>
                <td class="n">${number(part.seconds_per_step, 3)}</td>
                <td><${Share} value=${part.share_of_time} name=${`time of ${name}`} /></td>
                <td><${Share} value=${part.share_of_limit} name=${`limit of ${name}`} /></td>
              </tr>
            `)}
          </tbody>
        </table>
      </div>
    </section>
  `;
}

/** What a run came to, at the top of its page; nothing while it trains. */
export function Result({ run, summary }) {
  const recorded = run?.state === "recorded";
  if (!summary && !recorded) return null;
  return html`
    <section class="card result" aria-label="result">
      <dl class="figures">
        ${summary ? html`<${Ended} summary=${summary} />` : html`<${Recorded} run=${run} />`}
      </dl>
    </section>
  `;
}

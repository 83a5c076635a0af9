// One turn: what the policy saw, thought, said and called, and what came of it.

import { useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { of } from "../lib/api.js";
import { number, percent, plain } from "../lib/format.js";
import { Chip, Dialog, Text } from "./basic.js";
import { Picture } from "./picture.js";

/** The pictures of a turn: [{hash, raw, fed, marks}], `fed` null where nobody recorded what the model was fed. */
export function pairs(turn) {
  const fed = turn.fed ?? [];
  const own = turn.observation.images.map((hash, i) => ({
    hash,
    fed: fed.find((one) => one.hash === hash) ?? null,
    marks: turn.marks.filter((mark) => (mark.image ?? 0) === i),
  }));
  const others = fed.filter((one) => !turn.observation.images.includes(one.hash));
  return [...own, ...others.map((one) => ({ hash: one.hash, fed: one, marks: [], old: true }))];
}

/** What was done to the picture on its way to the model, in words. */
function fedName(fed) {
  if (!fed?.raw_size || !fed.fed_size) return "fed to the model";
  const share = Math.sqrt((fed.fed_size[0] * fed.fed_size[1]) / (fed.raw_size[0] * fed.raw_size[1]));
  const same = fed.fed_size.join() === fed.raw_size.join();
  return same ? "fed to the model, as it is" : `fed to the model, ${percent(share)}`;
}

function Enlarged({ shown, close }) {
  return html`
    <${Dialog} open=${shown !== null} close=${close} title=${shown?.name ?? ""} kind="large">
      ${shown && html`<${Picture} ...${shown} />`}
    <//>
  `;
}

/** What `Picture` needs for the screenshot and, where it was recorded, for what the model was fed. */
function both(run, { hash, fed, marks, old }, heat) {
  const name = old ? "an earlier screenshot, fed again" : "screenshot";
  const raw = { src: of(run, "images", hash), size: fed?.raw_size ?? null, marks, which: "raw", name };
  if (!fed?.url) return [raw];
  const pixel = fed.raw_size && fed.fed_size ? fed.fed_size[0] / fed.raw_size[0] : 1;
  return [raw, { src: fed.url, size: fed.fed_size ?? null, marks, which: "fed", heat, pixel, name: fedName(fed) }];
}

/** The raw screenshot beside the picture that the model was fed, with what it did drawn on both. */
export function Pictures({ run, turn, heat }) {
  const [large, setLarge] = useState(null);
  const all = turn === null ? [] : pairs(turn);
  if (all.length === 0) return null;
  const hot = (i) => (heat && (heat.image ?? 0) === i ? heat : null);
  const one = (props) => html`<${Picture} key=${props.which} ...${props} zoom=${() => setLarge(props)} />`;
  return html`
    <section class="pictures" aria-label="pictures">
      ${all.map((pair, i) => html`<div class="pair" key=${i}>${both(run, pair, hot(i)).map(one)}</div>`)}
      <${Enlarged} shown=${large} close=${() => setLarge(null)} />
    </section>
  `;
}

/** Arguments of a call as a short text: one value per line where they are long. */
function Arguments({ value }) {
  const entries = value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : [["", value]];
  if (entries.length === 0)
    return html`<span class="dim">no arguments</span>`;
  return html`
    <dl class="arguments">
      ${entries.map(([name, one]) => html`
        <div key=${name}>
          <dt>${name}</dt>
          <dd><${Text} value=${one} lines=${8} characters=${600} label="argument" /></dd>
        </div>
      `)}
    </dl>
  `;
}

export function Call({ call }) {
  return html`
    <div class="call">
      <p class="row">
        <b class="mono">${call.name}</b>
        ${call.success === false && html`<${Chip} tone="bad">refused<//>`}${
          call.success === true &&
          html`<${Chip} tone="quiet">done<//>`
        }
      </p>
      <${Arguments} value=${call.arguments} />
      ${
        call.result !== null &&
        call.result !== undefined &&
        html`<div class="result"><span class="dim">result</span><${Text} value=${call.result} label="result" /></div>`
      }
    </div>
  `;
}

function Part({ name, value, tone = "" }) {
  if (value === null || value === undefined || value === "") return null;
  return html`<div class=${`part ${tone}`}><h3>${name}</h3><${Text} value=${value} label=${name} /></div>`;
}

function Facts({ turn }) {
  return html`
    <p class="row facts">
      <${Chip} tone=${turn.reward > 0 ? "good" : turn.reward < 0 ? "bad" : "quiet"}>reward ${number(turn.reward, 3)}<//>
      ${turn.terminated && html`<${Chip}>terminated<//>`}${turn.truncated && html`<${Chip} tone="warn">truncated<//>`}
      ${
        turn.finish_reason === "length" &&
        html`<${Chip} tone="warn" title="the reply reached the limit of tokens">cut off<//>`
      }
      ${turn.finish_reason === "abort" && html`<${Chip} tone="warn">aborted<//>`}
      ${turn.flags.map((flag) => html`<${Chip} key=${flag} tone="warn">${flag}<//>`)}
      ${
        turn.starts_segment &&
        turn.index > 0 &&
        html`<${Chip} title="the history was rewritten before this turn">new segment<//>`
      }
      <${Chip} tone="quiet" title="of the policy that sampled this turn">version ${number(turn.policy_version)}<//>
      <${Chip} tone="quiet">${number(turn.context_tokens)} tokens fed<//>
    </p>
  `;
}

/** What the policy saw beside the pictures: words, and answers to its calls. */
function Seen({ observation }) {
  const answers = observation.tool_results ?? [];
  if (!observation.text && answers.length === 0) return null;
  return html`
    <details class="seen" open>
      <summary>What it read</summary>
      ${answers.map((answer, i) => html`
        <div class="result" key=${i}>
          <span class="dim">
            answer of
            <b class="mono">${answer.name}</b>
          </span>
          <${Text} value=${answer.result ?? plain(answer)} label="answer" />
        </div>
      `)}
      ${observation.text && html`<${Text} value=${observation.text} label="text" />`}
    </details>
  `;
}

function isEmpty(info) {
  return info === null || info === undefined || (typeof info === "object" && Object.keys(info).length === 0);
}

export function Said({ turn }) {
  return html`
    <section class="card said">
      <header><h2>Turn ${turn.index}</h2></header>
      <${Facts} turn=${turn} />
      <${Part} name="Thought" value=${turn.thought} tone="thought" />
      <${Part} name="Reply" value=${turn.reply ?? turn.action_text} />
      <${Part} name="Could not be read" value=${turn.parse_error} tone="bad" />
      ${turn.calls.length > 0 && html`
        <div class="part">
          <h3>${turn.calls.length === 1 ? "Call" : `${turn.calls.length} calls`}</h3>
          ${turn.calls.map((call, i) => html`<${Call} key=${i} call=${call} />`)}
        </div>
      `}
      <${Seen} observation=${turn.observation} />
      ${!isEmpty(turn.info) && html`
        <details class="seen">
          <summary>What the log was told</summary>
          <${Text} value=${turn.info} label="log" />
        </details>
      `}
    </section>
  `;
}

/** What stood there after the last turn. */
export function Final({ run, final }) {
  return html`
    <section class="pictures">
      <div class="pair">
        ${(final.images ?? []).map(
          (hash) => html`<${Picture} key=${hash} src=${of(run, "images", hash)} name="at the end" />`,
        )}
      </div>
    </section>
    <section class="card said">
      <header><h2>At the end</h2></header>
      ${final.text ? html`<${Text} value=${final.text} />` : html`<p class="dim">No words, only the picture.</p>`}
    </section>
  `;
}

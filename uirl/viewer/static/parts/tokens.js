// The tokens of a turn, one by one, coloured by a figure of the reader's choice; ids are those fed and sampled.

import { useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { of, useData } from "../lib/api.js";
import { FIGURES, background, has, largest, said } from "../lib/colours.js";
import { number, percent, visible } from "../lib/format.js";
import { withQuery } from "../lib/router.js";
import { Busy, Choice, Chip, Problem } from "./basic.js";

const LONGEST_RUN = 8; // equal tokens in a row (the places of a picture, padding) that are shown one by one
const PIECE = 1500;

/** Tokens with long runs of one id put together: [{token, index, times}]. */
export function grouped(tokens) {
  const runs = [];
  tokens.forEach((token, index) => {
    const last = runs.at(-1);
    if (last && last.token.id === token.id && last.token.mask === token.mask) last.times += 1;
    else runs.push({ token, index, times: 1 });
  });
  return runs.flatMap((run) => (run.times > LONGEST_RUN || run.times === 1 ? [run] : single(tokens, run)));
}

function single(tokens, { index, times }) {
  return Array.from({ length: times }, (_, i) => ({ token: tokens[index + i], index: index + i, times: 1 }));
}

/** How a token is written: its text with spaces and line ends that can be seen; without a tokenizer its id. */
export function written({ text, id }) {
  if (text === null || text === undefined) return String(id);
  if (text === "") return "∅";
  return visible(text).replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t").replace(/^ | $/g, "·");
}

function Token({ run, figure, top, current, at, point }) {
  const { token, index, times } = run;
  const plain = token.text === null || token.text === undefined;
  const classes = `token${token.mask ? "" : " context"}${plain ? " id" : ""}${current ? " current" : ""}`;
  return html`
    <span
      class=${classes}
      data-index=${index}
      tabindex=${at ? 0 : -1}
      onFocus=${() => point(index)}
      onPointerEnter=${() => point(index)}
      style=${{ background: background(figure, token, top) }}
    >
      ${written(token)}${times > 1 && html`<small>× ${times}</small>`}
    </span>
  `;
}

/** What is known of one token, in a line that stays where it is. */
function Detail({ token, index, coordinate }) {
  if (!token)
    return html`<p class="detail dim">Point at a token, or go through them with ← and →.</p>`;
  return html`
    <div class="detail" role="status">
      <b class="mono">
        ${token.text === null || token.text === undefined ? `#${token.id}` : JSON.stringify(token.text)}
      </b>
      <span class="dim">at ${index}</span>
      <dl>
        ${said(token).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
        ${
          coordinate &&
          html`<div><dt>${coordinate.axis} = ${coordinate.value}</dt><dd>${percent(coordinate.probability)}</dd></div>`
        }
      </dl>
    </div>
  `;
}

function move(event, body) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (by === undefined || !event.target.classList.contains("token")) return;
  event.preventDefault();
  const all = [...body.querySelectorAll(".token")];
  all[all.indexOf(event.target) + by]?.focus();
}

function Body({ tokens, coordinates, figure, top }) {
  const [at, setAt] = useState(null);
  const [most, setMost] = useState(PIECE);
  const body = useRef(null);
  const runs = useMemo(() => grouped(tokens), [tokens]);
  useEffect(() => (setAt(null), setMost(PIECE)), [tokens]);
  const coordinate = coordinates.find(({ start, stop }) => at !== null && start <= at && at < stop);
  const shown = runs.slice(0, most);
  return html`
    <div class="tokens" ref=${body} role="group" aria-label="tokens" onKeyDown=${(event) => move(event, body.current)}>
      ${shown.map((run, i) => html`
        <${Token}
          key=${run.index}
          run=${run}
          figure=${figure}
          top=${top}
          at=${at === null ? i === 0 : run.index === at}
          current=${run.index === at}
          point=${setAt}
        />
      `)}
    </div>
    ${
      runs.length > most &&
      html`<button class="link" onClick=${() => setMost(most + PIECE)}>${runs.length - most} more tokens</button>`
    }
    <${Detail} token=${at === null ? null : tokens[at]} index=${at} coordinate=${coordinate} />
  `;
}

function Coordinates({ coordinates }) {
  if (coordinates.length === 0) return null;
  return html`
    <p class="coordinates">
      how sure of the place:
      ${coordinates.map(
        (one, i) => html`<${Chip} key=${i}>${one.axis} = ${one.value}<b>${percent(one.probability)}</b><//>`,
      )}
    </p>
  `;
}

/** The answer about the tokens of a turn, also for the heat patch on the picture. */
export function useTokens(run, id, turn, context) {
  return useData(of(run, "trajectories", id, "tokens") + withQuery({ turn, context: context ? 1 : 0 }));
}

function described(figure, top, missing) {
  const { about } = FIGURES[figure];
  if (missing) return `${about}. Not recorded for this turn.`;
  return top > 0 && figure !== "mask" ? `${about}; largest size here ${number(top, 3)}` : about;
}

export function Tokens({ asked, figure, setFigure, context, setContext }) {
  const { data, error, reload } = asked;
  const tokens = data?.tokens ?? [];
  const choices = Object.entries(FIGURES).map(([name, { text, about }]) => [name, text, about]);
  const known = has(figure, tokens);
  const top = useMemo(() => largest(figure, tokens), [figure, tokens]);
  return html`
    <section class="card">
      <header>
        <h2>Tokens</h2>
        <span class="dim">${data ? number(tokens.length) : ""}</span>
        <span class="grow"></span>
        <label>
          <input type="checkbox" checked=${context} onChange=${(e) => setContext(e.target.checked)} />
          with what was fed
        </label>
      </header>
      <${Choice} label="colour by" value=${figure} choose=${setFigure} choices=${choices} />
      <p class="dim about">${described(figure, top, data !== null && !known)}</p>
      <${Problem} error=${error} retry=${reload} />
      ${
        data === null && !error
          ? html`<${Busy} what="Reading tokens" />`
          : html`<${Body} tokens=${tokens} coordinates=${data?.coordinates ?? []} figure=${figure} top=${top} />`
      }
      <${Coordinates} coordinates=${data?.coordinates ?? []} />
    </section>
  `;
}

// The film strip of an episode: one small picture per turn, with what is known of each.

import { useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { of } from "../lib/api.js";
import { number } from "../lib/format.js";

const LONG = 100; // turns beyond which frames have one width, and only those near the ones in sight are drawn
const GAP = 4;
const PITCH = 90 + GAP; // pixels from one frame of a long strip to the next
const STEP = 20;
const DRAWN = 100;

/** What stands over a turn of the strip: right, wrong, or nobody said. */
export function standing(turn, prefix, error) {
  if (error === turn) return "error";
  if (error !== null && error !== undefined) return turn < error ? "right" : "";
  return prefix === null || prefix === undefined ? "" : turn < prefix ? "right" : turn === prefix ? "error" : "";
}

const SIGNS = {
  right: html`<span class="plus" title="right">✓</span>`,
  error: html`<span class="minus" title="the error">✗</span>`,
  "": null,
};

/** The small picture of a place in the strip, or what was read there. */
function Small({ run, hash, text }) {
  if (!hash)
    return html`<span class="noimage">${text.slice(0, 60) || "text"}</span>`;
  return html`<img loading="lazy" src=${of(run, "images", hash, "small")} alt="" />`;
}

function frame({ run, turn, at, state, go }) {
  const called = turn.calls.join(", ") || (turn.parse_error ? "unreadable" : "reply");
  return html`
    <li class=${state}>
      <button aria-current=${at ? "step" : undefined} onClick=${() => go(turn.index)}>
        <span class="hidden">turn</span>
        <${Small} run=${run} hash=${turn.image} text=${turn.text} />
        <span class="under">
          <b>${turn.index}</b>
          ${SIGNS[state]}
          <span class="what">${called}</span>
          ${turn.reward ? html`
            <span class=${turn.reward > 0 ? "plus" : "minus"}>
              ${turn.reward > 0 ? "+" : ""}${number(turn.reward, 2)}
            </span>
          `: null}${turn.warned && html`<span class="warned">⚠</span>`}
        </span>
      </button>
    </li>
  `;
}

/** One turn of the strip, drawn again only where it changed. */
function Frame(props) {
  return useMemo(() => frame(props), [props.turn, props.at, props.state]);
}

function Last({ run, final, count, at, go }) {
  if (!final) return null;
  return html`
    <li>
      <button aria-current=${at ? "step" : undefined} onClick=${go}>
        <${Small} run=${run} hash=${final.images?.at(-1)} text=${final.text ?? ""} />
        <span class="under">
          <b>${count}</b>
          <span class="what">end</span>
        </span>
      </button>
    </li>
  `;
}

/** The frame of a turn stands so far from the left of the strip; null where widths differ. */
const placeOf = (long, index) => (long ? index * PITCH : null);

/** Scroll so that the current turn can be seen, with one beside it. */
function useFollow(list, long, turn, id) {
  useEffect(() => {
    const box = list.current;
    const shown = box.querySelector("[aria-current]")?.parentElement;
    const left = placeOf(long, turn) ?? shown?.offsetLeft;
    if (left === undefined) return;
    const right = left + (long ? PITCH : shown.offsetWidth);
    if (left < box.scrollLeft + 40) box.scrollLeft = left - 80;
    if (right > box.scrollLeft + box.clientWidth - 40) box.scrollLeft = right - box.clientWidth + 80;
  }, [turn, id]);
}

/** Room for frames that are not drawn, as they are out of sight. */
function Room({ count }) {
  if (count <= 0) return null;
  return html`<li aria-hidden="true" style=${{ width: `${count * PITCH - GAP}px` }}></li>`;
}

/** Which turns are drawn: [from, to), all of them where they are few. `scrolled` looks again. */
function useWindow(list, long, count) {
  const [from, setFrom] = useState(0);
  const scrolled = () => long && setFrom(STEP * Math.max(0, Math.floor(list.current.scrollLeft / PITCH / STEP) - 1));
  return long ? [from, Math.min(from + DRAWN, count), scrolled] : [0, count, scrolled];
}

export function Strip({ run, data, turn, error, go }) {
  const list = useRef(null);
  const count = data.turns.length;
  const long = count > LONG;
  const [from, to, scrolled] = useWindow(list, long, count);
  useFollow(list, long, turn, data.id);
  const prefix = data.verdict?.correct_prefix;
  const one = (frame) => html`
    <${Frame}
      key=${frame.index}
      run=${run}
      turn=${frame}
      at=${frame.index === turn}
      state=${standing(frame.index, prefix, error)}
      go=${go}
    />
  `;
  return html`
    <nav class=${long ? "strip long" : "strip"} aria-label="turns">
      <ol ref=${list} onScroll=${scrolled}>
        <${Room} key="before" count=${from} />
        ${data.turns.slice(from, to).map(one)}
        <${Room} key="behind" count=${count - to} />
        <${Last} key="end" run=${run} final=${data.final} count=${count} at=${turn >= count} go=${() => go(count)} />
      </ol>
    </nav>
  `;
}

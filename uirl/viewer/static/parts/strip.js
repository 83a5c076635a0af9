// The film strip of an episode: one small picture per turn, with what is known of each.

import { html, useEffect, useMemo, useRef } from "../vendor/htm-preact.js";
import { of } from "../lib/api.js";
import { number } from "../lib/format.js";

/** What stands over a turn of the strip: right, wrong, or nobody said. */
export function standing(turn, prefix, error) {
  if (error === turn) return "error";
  if (error !== null && error !== undefined) return turn < error ? "right" : "";
  return prefix === null || prefix === undefined ? "" : turn < prefix ? "right" : turn === prefix ? "error" : "";
}

const SIGNS = {
  right: html`
    <span class="plus" title="right">✓</span>
  `,
  error: html`
    <span class="minus" title="the error">✗</span>
  `,
  "": null,
};

/** The small picture of a place in the strip, or what was read there. */
function Small({ run, hash, text }) {
  if (!hash)
    return html`
      <span class="noimage">${text.slice(0, 60) || "text"}</span>
    `;
  return html`
    <img loading="lazy" src=${of(run, "images", hash, "small")} alt="" />
  `;
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
          ${
            turn.reward
              ? html`
                  <span class=${turn.reward > 0 ? "plus" : "minus"}>
                    ${turn.reward > 0 ? "+" : ""}${number(turn.reward, 2)}
                  </span>
                `
              : null
          }${
            turn.warned &&
            html`
              <span class="warned">⚠</span>
            `
          }
        </span>
      </button>
    </li>
  `;
}

/** One turn of the strip, drawn again only where it changed: there may be thousands. */
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

export function Strip({ run, data, turn, error, go }) {
  const place = useRef(null);
  useEffect(() => {
    const shown = place.current.querySelector("[aria-current]");
    if (!shown) return;
    const list = place.current;
    const [left, right] = [
      shown.parentElement.offsetLeft,
      shown.parentElement.offsetLeft + shown.parentElement.offsetWidth,
    ];
    if (left < list.scrollLeft + 40) list.scrollLeft = left - 80;
    if (right > list.scrollLeft + list.clientWidth - 40) list.scrollLeft = right - list.clientWidth + 80;
  }, [turn, data.id]);
  const prefix = data.verdict?.correct_prefix;
  return html`
    <nav class="strip" aria-label="turns">
      <ol ref=${place}>
        ${data.turns.map(
          (one) => html`
            <${Frame}
              key=${one.index}
              run=${run}
              turn=${one}
              at=${one.index === turn}
              state=${standing(one.index, prefix, error)}
              go=${go}
            />
          `,
        )}
        <${Last}
          run=${run}
          final=${data.final}
          count=${data.turns.length}
          at=${turn >= data.turns.length}
          go=${() => go(data.turns.length)}
        />
      </ol>
    </nav>
  `;
}

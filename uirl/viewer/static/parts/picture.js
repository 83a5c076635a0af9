// A picture with what was done on it, drawn at the pixel it was done at, whatever the size on the screen.

import { useLayoutEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { percent } from "../lib/format.js";

/** Pixels of the picture per pixel of the screen: marks are drawn in screen pixels, at places in picture pixels. */
function useScale(frame, width) {
  const [scale, setScale] = useState(1);
  useLayoutEffect(() => {
    const measure = () => frame.current?.clientWidth > 0 && setScale(width / frame.current.clientWidth);
    measure();
    const fit = new ResizeObserver(measure);
    fit.observe(frame.current);
    return () => fit.disconnect();
  }, [width]);
  return scale;
}

function Point({ x, y, scale, children }) {
  return html`<g transform=${`translate(${x} ${y}) scale(${scale})`}>${children}</g>`;
}

/** Where a click went; `open`: without the ring, which would hide how sure it was. */
function Cross({ open }) {
  return html`
    ${!open && html`<circle r="11" class="halo" /><circle r="11" class="ring" />`}
    <path d="M-5 0H5M0 -5V5" class="halo" />
    <path d="M-5 0H5M0 -5V5" class="ring thin" />
  `;
}

function Drag({ place: [x0, y0, x1, y1], scale }) {
  const angle = (Math.atan2(y1 - y0, x1 - x0) * 180) / Math.PI;
  return html`
    <line x1=${x0} y1=${y0} x2=${x1} y2=${y1} class="halo" vector-effect="non-scaling-stroke" />
    <line x1=${x0} y1=${y0} x2=${x1} y2=${y1} class="ring" vector-effect="non-scaling-stroke" />
    <${Point} x=${x0} y=${y0} scale=${scale}>
      <circle r="5" class="halo" />
      <circle r="5" class="dot" />
    <//>
    <${Point} x=${x1} y=${y1} scale=${scale}><path transform=${`rotate(${angle})`} d="M0 0L-12 -6V6Z" class="dot" /><//>
  `;
}

const LETTER = 7.3; // width of a letter of the overlay, in pixels of the screen
const MOST_LETTERS = 28;

/** Words beside a mark, kept inside the picture: to its right, or below or above it where there is no room. */
function Words({ text, x, y, width, height, scale }) {
  const room = width / scale;
  const most = Math.max(4, Math.min(MOST_LETTERS, Math.floor((room - 12) / LETTER)));
  const letters = Array.from(text);
  const shown = letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
  const wide = LETTER * Array.from(shown).length + 12;
  const beside = x / scale + 17 + wide <= room;
  const left = beside ? x / scale + 17 : Math.max(0, Math.min(x / scale - wide / 2, room - wide));
  const top = beside ? y / scale : y / scale + (y / scale + 38 < height / scale ? 25 : -25);
  return html`
    <${Point} x=${left * scale} y=${top * scale} scale=${scale}>
      <rect class="pill" y="-10" width=${wide} height="20" rx="4" />
      <text x="6" y="4">${shown}</text>
    <//>
  `;
}

/** A place inside the picture, and what is said of one that is not: the nearest at its edge stands for it. */
function inside(place, width, height) {
  const at = place.map((value, i) => Math.max(0, Math.min(value, i % 2 ? height : width)));
  const out = at.some((value, i) => value !== place[i]);
  return [at, out ? `outside: ${place.slice(-2).map(Math.floor).join(", ")}` : null];
}

const WORDS = { type: (text) => `⌨ ${text}`, key: (text) => `⌨ ${text}`, scroll: (text) => `⇕ ${text}` };

/** One mark; `place` is where in the picture, null where nobody knows: then only its words are shown, at the edge. */
function Mark({ mark, place, open, width, height, scale }) {
  const said =
    mark.text !== null && mark.text !== undefined && mark.text !== ""
      ? (WORDS[mark.kind] ?? String)(String(mark.text))
      : null;
  const [at, out] = place ? inside(place, width, height) : [null, null];
  const words = [out, said].filter(Boolean).join(" ");
  if (!place)
    return (
      words &&
      html`
        <${Words}
          text=${words}
          x=${-11 * scale}
          y=${height - 16 * scale}
          width=${width}
          height=${height}
          scale=${scale}
        />
      `
    );
  const [x, y] = at.slice(-2);
  return html`
    <g class="mark" data-kind=${mark.kind}>
      ${
        at.length === 4
          ? html`<${Drag} place=${at} scale=${scale} />`
          : html`<${Point} x=${x} y=${y} scale=${scale}><${Cross} open=${open} /><//>`
      }
      ${words && html`<${Words} text=${words} x=${x} y=${y} width=${width} height=${height} scale=${scale} />`}
    </g>
  `;
}

let made = 0; // gradients so far: each needs a name of its own

/** Where the policy's coordinate tokens put their probability: narrow and strong where it was sure. */
function Heat({ heat, scale }) {
  const id = useMemo(() => `heat-${(made += 1)}`, []);
  const [rx, ry] = [heat.radius_x ?? heat.radius, heat.radius_y ?? heat.radius].map((r) => Math.max(r, 4 * scale));
  return html`
    <g class="heat">
      <defs>
        <radialGradient id=${id}>
          <stop offset="0" stop-opacity=${0.25 + 0.6 * heat.probability} />
          <stop offset="1" stop-opacity="0" />
        </radialGradient>
      </defs>
      <ellipse cx=${heat.x} cy=${heat.y} rx=${rx} ry=${ry} fill=${`url(#${id})`} />
      <ellipse ...${{ cx: heat.x, cy: heat.y, rx, ry }} class="edge under" vector-effect="non-scaling-stroke" />
      <ellipse ...${{ cx: heat.x, cy: heat.y, rx, ry }} class="edge" vector-effect="non-scaling-stroke" />
    </g>
  `;
}

function described(name, marks, places) {
  const said = marks.map((mark, i) => {
    const where = places[i] ? ` at ${places[i].map((v) => Math.floor(v)).join(", ")}` : "";
    return `${mark.kind}${where}${mark.text ? ` "${mark.text}"` : ""}`;
  });
  return said.length ? `${name}: ${said.join("; ")}` : name;
}

/** "412, 318" under the pointer, in pixels of the picture. */
function usePointer(width, height) {
  const [at, setAt] = useState(null);
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    setAt(`${Math.floor(x * width)}, ${Math.floor(y * height)}`);
  };
  return [at, { onPointerMove: move, onPointerLeave: () => setAt(null) }];
}

/** What was done on a picture, over it: its own coordinates are pixels of the picture. */
function Overlay({ marks, places, heat, width, height, scale }) {
  return html`
    <svg viewBox=${`0 0 ${width} ${height}`} aria-hidden="true">
      ${heat && html`<svg width=${width} height=${height}><${Heat} heat=${heat} scale=${scale} /></svg>`}
      ${marks.map((mark, i) => html`
        <${Mark}
          key=${i}
          mark=${mark}
          place=${places[i]}
          open=${heat !== null && i === 0}
          width=${width}
          height=${height}
          scale=${scale}
        />
      `)}
    </svg>
  `;
}

function Caption({ name, size, at, heat }) {
  return html`
    <figcaption>
      <span class="name">${name}</span>
      <span class="dim">${size ? size.join(" × ") : ""}</span>
      <span class="grow"></span>
      <span class="mono dim">${at ?? ""}</span>
      ${heat && html`
        <span class="dim" title="product of the probabilities of the coordinate tokens">
          p ${percent(heat.probability)}
        </span>
      `}
    </figcaption>
  `;
}

/** Pixels from 0 as points: from the corner of a pixel to its middle. */
function centred(place, pixel) {
  return place?.map((value) => value + pixel / 2) ?? null;
}

/**
 * `src` with `marks`; `which`: "raw" or "fed", the field of a mark that is drawn. `size`: [width, height] in pixels,
 * null where nobody knows: then the picture itself says it. `pixel`: how wide a pixel of the screenshot is in this one;
 * marks name pixels of the screenshot, and are drawn in the middle of them.
 */
export function Picture({ src, size: known, marks = [], which = "raw", heat: hot = null, pixel = 1, name, zoom }) {
  const frame = useRef(null);
  const [found, setFound] = useState(null);
  const [lost, setLost] = useState(null);
  const size = known ?? found;
  const [width, height] = size ?? [1, 1];
  const scale = useScale(frame, width);
  const [at, pointing] = usePointer(width, height);
  const places = marks.map((mark) => centred(mark[which], pixel));
  const heat = hot && { ...hot, x: hot.x + pixel / 2, y: hot.y + pixel / 2 };
  const loaded = ({ target }) => setFound([target.naturalWidth, target.naturalHeight]);
  const seen = lost !== src;
  const overlay = html`
    <${Overlay} marks=${marks} places=${places} heat=${heat} width=${width} height=${height} scale=${scale} />
  `;
  const enlarge = html`<button class="zoom" onClick=${zoom} aria-label=${`enlarge: ${name}`}>⤢</button>`;
  const image = html`
    <img
      src=${src}
      alt=${described(name, marks, places)}
      onLoad=${loaded}
      onError=${() => setLost(src)}
      class=${size && scale < 0.5 ? "crisp" : ""}
      decoding="sync"
    />
  `;
  return html`
    <figure class="picture" style=${{ "--ratio": width / height }}>
      <div class="frame" ref=${frame} style=${{ aspectRatio: `${width} / ${height}` }} ...${pointing}>
        ${seen ? image : html`<p class="empty">This picture is not there, or cannot be shown.</p>`}
        ${size && overlay} ${zoom && seen && enlarge}
      </div>
      <${Caption} name=${name} size=${size} at=${at} heat=${heat} />
    </figure>
  `;
}

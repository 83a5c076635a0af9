// One chart: lines over steps or time, with band, smoothing, and its picture or numbers to take away.

import uPlot from "../vendor/uPlot.esm.js";
import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { csv, joined, notFiniteSince } from "../lib/series.js";
import { colour, onTheme } from "../lib/theme.js";
import { duration, number, visible } from "../lib/format.js";
import { bandOf, drawing, linesOf, options } from "./drawing.js";
import { download } from "./basic.js";

function Legend({ drawn, at, hidden, toggle, more, setMore }) {
  const value = (i) => {
    const line = drawn.values[i];
    if (at !== null) return number(line[at]);
    const since = notFiniteSince(drawn.lines[i].column);
    return since === null
      ? number(line.findLast((y) => y !== null))
      : html`<span class="minus" title="no finite number since then">not finite since step ${number(since)}</span>`;
  };
  const few = more ? drawn.lines : drawn.lines.slice(0, 8);
  return html`
    <ul class="legend">
      ${few.map((line, i) => html`
        <li key=${line.key}>
          <button
            aria-pressed=${hidden.has(line.key) ? "false" : "true"}
            onClick=${() => toggle(line.key)}
            title=${`${line.metric}: show or hide`}
          >
            <svg width="16" height="8" aria-hidden="true">
              <line
                x1="0"
                y1="4"
                x2="16"
                y2="4"
                stroke-width="2"
                style=${{ stroke: `var(${line.colour})`, strokeDasharray: line.dash?.join(" ") }}
              />
            </svg>
            <span>${line.name}</span>
            <b>${value(i)}</b>
          </button>
        </li>
      `)}
      ${drawn.lines.length > 8 && html`
        <li>
          <button class="link" onClick=${() => setMore(!more)}>
            ${more ? "fewer" : `${drawn.lines.length - 8} more`}
          </button>
        </li>
      `}
    </ul>
  `;
}

function picture(plot, chart) {
  const scale = devicePixelRatio;
  const canvas = document.createElement("canvas");
  const source = plot.ctx.canvas;
  canvas.width = source.width;
  canvas.height = source.height + 26 * scale;
  const draw = canvas.getContext("2d");
  draw.fillStyle = colour("--panel");
  draw.fillRect(0, 0, canvas.width, canvas.height);
  draw.fillStyle = colour("--ink");
  draw.font = `${13 * scale}px system-ui, sans-serif`;
  draw.fillText(visible(chart.title), 10 * scale, 18 * scale);
  draw.drawImage(source, 0, 26 * scale);
  canvas.toBlob((blob) => blob && download(`${chart.title}.png`, blob));
}

function table(chart, runs, axis) {
  const lines = linesOf(chart, runs, axis);
  const band = bandOf(chart, runs, axis) ?? [];
  const columns = joined([...lines.map((line) => line.column), ...band], axis);
  const names = [...lines.map((line) => line.metric), ...(band.length ? chart.band : [])];
  const first = axis === "time" ? "seconds" : (chart.along ?? "step");
  download(`${chart.title}.csv`, csv([first, ...names], columns), "text/csv");
}

/** Whether the element is in sight, or nearly. */
function useInSight(place) {
  const [near, setNear] = useState(false);
  useEffect(() => {
    const watch = new IntersectionObserver((found) => setNear(found.at(-1).isIntersecting), { rootMargin: "300px" });
    watch.observe(place.current);
    return () => watch.disconnect();
  }, []);
  return near;
}

/** What the chart draws; out of sight it stays as it was, so that a page of many charts costs what is seen of it. */
function useDrawing(near, { chart, runs, axis, weight, version }, hidden) {
  const drawn = useRef(null);
  const told = useRef(null);
  const now = JSON.stringify([
    version,
    chart,
    runs.map((run) => [run.key, run.name, run.colour]),
    axis,
    weight,
    [...hidden],
  ]);
  if (near && told.current !== now) {
    told.current = now;
    drawn.current = drawing(chart, runs, axis, weight, hidden);
  }
  return drawn.current;
}

/** Make the plot when there is something to draw, and keep its data, size and colours up to date. */
function usePlot(place, drawn, axis, hidden, onCursor) {
  const plot = useRef(null);
  const shape =
    drawn &&
    JSON.stringify([
      { ...drawn, data: null, values: null, lines: drawn.lines.map((line) => [line.key, line.colour]) },
      axis,
      [...hidden],
    ]);
  const [paint, setPaint] = useState(0);
  useEffect(() => onTheme(() => setPaint((n) => n + 1)), []);
  useLayoutEffect(() => {
    if (shape === null) return undefined;
    const size = () => ({ width: Math.max(place.current.clientWidth, 120), height: place.current.clientHeight });
    plot.current = new uPlot(options(drawn, axis, hidden, size(), onCursor), drawn.data, place.current);
    const fit = new ResizeObserver(() => plot.current?.setSize(size()));
    fit.observe(place.current);
    return () => {
      fit.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape, paint]);
  useEffect(() => plot.current && refill(plot.current, drawn.data), [drawn?.data]);
  return plot;
}

/** Give the plot new data; where it was zoomed in, it stays there. */
function refill(plot, data) {
  const { min, max } = plot.scales.x;
  const old = plot.data[0];
  const zoomed = old.length > 1 && (min > old[0] || max < old.at(-1));
  plot.setData(data);
  if (zoomed) plot.setScale("x", { min, max });
}

function Head({ chart, place, plot, runs, axis }) {
  const asPicture = () => plot.current && picture(plot.current, chart);
  const asTable = () => table(chart, runs, axis);
  return html`
    <figcaption>
      <h2>${chart.title}</h2>
      <span class="unit">${place ?? chart.unit}</span>
      <button class="small" onClick=${asPicture} aria-label=${`${chart.title} as PNG`}>PNG</button>
      <button class="small" onClick=${asTable} aria-label=${`${chart.title} as CSV`}>CSV</button>
    </figcaption>
  `;
}

/** Where the pointer is along the axis, in words; null where it is nowhere. */
function placeOf(drawn, at, axis, chart) {
  const x = at === null ? null : (drawn?.data[0][at] ?? null);
  if (x === null) return null;
  return axis === "time" ? duration(x) : `${chart.along ?? "step"} ${number(x)}`;
}

/**
 * A card with one chart. `chart`: {title, unit, kind, series, band}; `runs`: [{key, name, colour, start, table}];
 * `version` changes when rows were added.
 */
export function Chart(props) {
  const { chart, runs, axis } = props;
  const box = useRef(null);
  const [hidden, setHidden] = useState(new Set());
  const [at, setAt] = useState(null);
  const [more, setMore] = useState(false);
  const drawn = useDrawing(useInSight(box), props, hidden);
  const plot = usePlot(box, drawn, axis, hidden, setAt);
  const toggle = (key) =>
    setHidden((old) => new Set(old.has(key) ? [...old].filter((one) => one !== key) : [...old, key]));
  const name = `${chart.title}, ${drawn?.data[0].length ?? 0} points`;
  return html`
    <figure class="chart">
      <${Head} chart=${chart} place=${placeOf(drawn, at, axis, chart)} plot=${plot} runs=${runs} axis=${axis} />
      <div class="plot" ref=${box} role="img" aria-label=${name}></div>
      ${drawn && html`<${Legend} ...${{ drawn, at, hidden, toggle, more, setMore }} />`}
    </figure>
  `;
}

// What a chart draws: lines, bands and stacks as uPlot takes them.

import { joined, sinceStart, smoothed, stacked, thinned } from "../lib/series.js";
import { colour } from "../lib/theme.js";
import { duration, number } from "../lib/format.js";

export const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const DASHES = [undefined, [6, 3], [2, 3], [9, 3, 2, 3]];
const MOST_POINTS = 3000;

/** Names without the parts that all of them share: "level/new/tasks", "level/old/tasks" -> "new", "old". */
export function shortened(names) {
  if (names.length < 2) return names;
  const split = names.map((name) => name.split("/"));
  const least = Math.min(...split.map((parts) => parts.length)) - 1;
  const same = (at) => split.every((parts) => parts.at(at) === split[0].at(at));
  let front = 0;
  while (front < least && same(front)) front += 1;
  let back = 0;
  while (back < least - front && same(-1 - back)) back += 1;
  return split.map((parts) => parts.slice(front, parts.length - back).join("/"));
}

/**
 * The lines of a chart over several runs: [{name, run, metric, colour, dash, column}].
 * One run: a colour per metric. Several: a colour per run, and dashes tell its metrics apart.
 */
export function linesOf(chart, runs, axis) {
  const many = runs.length > 1;
  const short = shortened(chart.series);
  return runs
    .flatMap((run) =>
      chart.series.map((metric, i) => {
        const column = run.table.columns.get(metric);
        return {
          name: many ? (chart.series.length > 1 ? `${run.name} · ${short[i]}` : run.name) : short[i],
          metric: many ? `${run.name} · ${metric}` : metric,
          key: `${run.key} ${metric}`,
          colour: many ? run.colour : COLOURS[i % COLOURS.length],
          dash: many ? DASHES[i % DASHES.length] : DASHES[Math.floor(i / COLOURS.length) % DASHES.length],
          column: column && axis === "time" ? sinceStart(column, run.start) : column,
        };
      }),
    )
    .filter((line) => line.column);
}

/** The columns of low and high of the chart's band, for one run; null where there is none. */
export function bandOf(chart, runs, axis) {
  if (!chart.band || runs.length !== 1) return null;
  const columns = chart.band.map((name) => runs[0].table.columns.get(name));
  if (!columns.every(Boolean)) return null;
  return axis === "time" ? columns.map((column) => sinceStart(column, runs[0].start)) : columns;
}

/**
 * What uPlot draws: {lines, band, faint, stack, values, data}; `band`: the colour of the line that it belongs to, null
 * where that is not shown. With smoothing each line stands twice, the raw one faint. A stack of one run is drawn as
 * sums from below; `values` are the figures themselves, for the legend.
 */
export function drawing(chart, runs, axis, weight, hidden) {
  const lines = linesOf(chart, runs, axis);
  const banded = lines.find((line) => line.metric === chart.band?.[0].replace(/_low$/, "") && !hidden.has(line.key));
  const band = banded ? bandOf(chart, runs, axis) : null;
  const [xs, ...ys] = joined([...lines.map((line) => line.column), ...(band ?? [])], axis);
  const kept = thinned(ys, xs.length, MOST_POINTS);
  const thin = (line) => (kept === null ? line : kept.map((i) => line[i]));
  const raw = ys.slice(0, lines.length);
  const values = raw.map((line) => thin(smoothed(line, weight)));
  const stack = chart.kind === "stack" && runs.length === 1 && lines.length > 1;
  const faint = weight > 0 && !stack;
  const shown = stack ? stacked(values, (i) => !hidden.has(lines[i].key)) : values;
  const rest = [...ys.slice(lines.length), ...(faint ? raw : [])].map(thin);
  return { lines, band: band && banded.colour, faint, stack, values, data: [thin(xs), ...shown, ...rest] };
}

function seriesOf({ lines, band, faint, stack }, hidden) {
  const points = { show: (u, i) => !stack && u.data[i].filter((y) => y !== null).length < 30, size: 4 };
  const line = (one, alpha) => ({
    label: one.name,
    stroke: colour(one.colour),
    dash: one.dash,
    width: alpha === 1 ? 1.5 : 1,
    alpha,
    spanGaps: true,
    show: !hidden.has(one.key),
    points: alpha === 1 ? points : { show: false },
  });
  const lowest = stack ? lines.find((one) => !hidden.has(one.key)) : null;
  const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
  return [
    {},
    ...lines.map((one) => (one === lowest ? { ...line(one, 1), fill: layer(one.colour) } : line(one, 1))),
    ...(band ? [edge, edge] : []),
    ...(faint ? lines.map((one) => line(one, 0.25)) : []),
  ];
}

/** The colour of an area, that of its line, thin: a layer of a stack, or a band. */
function layer(name, alpha = 0.28) {
  return colour(name).replace(/^rgb\((.*)\)$/, `rgba($1, ${alpha})`);
}

/** The areas between lines: the band, or the layers of a stack (of those that are shown). */
function bandsOf({ lines, band, stack }, hidden) {
  if (band) return [{ series: [lines.length + 2, lines.length + 1], fill: layer(band, 0.16) }];
  if (!stack) return [];
  const shown = lines.map((_, i) => i).filter((i) => !hidden.has(lines[i].key));
  return shown.slice(1).map((i, at) => ({ series: [i + 1, shown[at] + 1], fill: layer(lines[i].colour) }));
}

function axesOf(axis) {
  const look = {
    stroke: colour("--dim"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("--grid"), width: 1 },
    ticks: { show: false },
  };
  const along =
    axis === "time"
      ? (_, values) => values.map(duration)
      : (_, values) => values.map((value) => (Number.isInteger(value) ? number(value) : ""));
  return [
    { ...look, size: 26, space: 60, values: along },
    {
      ...look,
      size: (u, values) => 14 + 7 * Math.max(3, ...(values ?? []).map((text) => text.length)),
      space: 34,
      values: (_, values) => values.map((value) => number(value, 3)),
    },
  ];
}

export function options(drawn, axis, hidden, size, onCursor) {
  return {
    ...size,
    scales: { x: { time: false }, y: { range: (_, low, high) => padded(drawn.stack ? Math.min(low, 0) : low, high) } },
    legend: { show: false },
    cursor: { sync: { key: "uirl" }, points: { size: 6 }, drag: { x: true, y: false }, focus: { prox: -1 } },
    series: seriesOf(drawn, hidden),
    bands: bandsOf(drawn, hidden),
    axes: axesOf(axis),
    hooks: { setCursor: [(u) => onCursor(u.cursor.idx ?? null)], setScale: [named] },
    padding: [8, 10, 0, 0],
  };
}

/** Say on the element which stretch of the axis is drawn, as nobody can read it from the pixels. */
function named(plot, scale) {
  const { min, max } = plot.scales[scale];
  if (scale === "x") Object.assign(plot.root.dataset, { from: min ?? "", to: max ?? "" });
}

function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = high > low ? 0.06 * (high - low) : Math.abs(high) * 0.1 || 1;
  return [
    low >= 0 && low - room < 0 ? 0 : low - room,
    high <= 1 && high + room > 1 && low >= 0 && high > 0.5 ? 1.02 : high + room,
  ];
}

// Metrics as columns, and what charts make of them. Pure functions.

/** An empty table: per metric the steps, times and values of the rows that have it. */
export function emptyTable() {
  return { next: 0, last: null, rows: 0, columns: new Map() };
}

const PHASES = ["warm_start"]; // as in uirl/metrics/trackers.py: their rows are all of step 0, and count their own

/** The phase before the first update that a metric belongs to; null: none. */
export function phaseOf(name) {
  return PHASES.find((phase) => name.startsWith(`${phase}/`)) ?? null;
}

/** The step at which a metric of a row stands. */
function stepOf(name, row) {
  const phase = phaseOf(name);
  const own = phase === null ? null : row[`${phase}/step`];
  return typeof own === "number" ? own : row.step;
}

/**
 * Add rows of the metrics file, in place. A value that is null is no finite number, and a gap; others that are no
 * numbers are passed over.
 */
export function addRows(table, rows, next) {
  for (const row of rows) {
    for (const name in row) {
      if (name === "step" || name === "time" || (typeof row[name] !== "number" && row[name] !== null)) continue;
      let column = table.columns.get(name);
      if (column === undefined) table.columns.set(name, (column = { step: [], time: [], value: [] }));
      column.step.push(stepOf(name, row));
      column.time.push(row.time);
      column.value.push(row[name]);
    }
  }
  table.next = next;
  table.rows += rows.length;
  table.last = rows.at(-1) ?? table.last;
  return table;
}

/** From which step on a column holds no finite number any more; null: its newest value is one. */
export function notFiniteSince(column) {
  if (column.value.at(-1) !== null) return null;
  return column.step[column.value.findLastIndex((value) => value !== null) + 1];
}

/**
 * Running mean of `values` with weight w on the past, without the pull of its start:
 * s_t = w s_{t-1} + (1 - w) v_t, shown as s_t / (1 - w^t). Gaps (null) stay gaps and are not counted.
 */
export function smoothed(values, w) {
  if (!(w > 0)) return values;
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return value;
    sum = w * sum + (1 - w) * value;
    weight = w * weight + (1 - w);
    return sum / weight;
  });
}

/**
 * Indices to draw of `count` points, at most about `most`: of each stretch the first, and the lowest and highest of
 * every line, so that no peak is lost.
 */
export function thinned(lines, count, most) {
  if (count <= most) return null;
  const stretches = Math.max(1, Math.floor(most / (1 + 2 * Math.max(lines.length, 1))));
  const kept = new Set([0, count - 1]);
  for (let s = 0; s < stretches; s += 1) {
    const [from, to] = [Math.floor((s * count) / stretches), Math.floor(((s + 1) * count) / stretches)];
    kept.add(from);
    for (const line of lines) for (const i of extremes(line, from, to)) kept.add(i);
  }
  return [...kept].sort((a, b) => a - b);
}

function extremes(line, from, to) {
  let low = -1;
  let high = -1;
  for (let i = from; i < to; i += 1) {
    if (line[i] === null || line[i] === undefined) continue;
    if (low < 0 || line[i] < line[low]) low = i;
    if (high < 0 || line[i] > line[high]) high = i;
  }
  return low < 0 ? [] : [low, high];
}

/**
 * Join columns that may have different steps: [xs, line, line, ...], null where a line has no value. All of it is made
 * anew: the columns grow on, and a chart compares what it draws with what it drew.
 */
export function joined(columns, axis) {
  if (sameRows(columns, axis)) return [[...columns[0][axis]], ...columns.map((column) => column.value.map(finite))];
  const all = new Set(columns.flatMap((column) => column?.[axis] ?? []));
  const xs = [...all].filter(Number.isFinite).sort((a, b) => a - b);
  const place = new Map(xs.map((x, i) => [x, i]));
  const lines = columns.map((column) => {
    const line = new Array(xs.length).fill(null);
    column?.[axis].forEach((x, i) => place.has(x) && (line[place.get(x)] = finite(column.value[i])));
    return line;
  });
  return [xs, ...lines];
}

/** Whether all columns stand in the same rows, in order: then nothing need be joined, which matters for long runs. */
function sameRows(columns, axis) {
  const first = columns[0]?.[axis];
  if (!first) return false;
  for (let i = 1; i < first.length; i += 1) if (!(first[i] > first[i - 1])) return false;
  return columns.every(
    (column) => column?.[axis].length === first.length && column[axis].every((x, i) => x === first[i]),
  );
}

function finite(value) {
  return Number.isFinite(value) ? value : null;
}

/** Lines as sums from below, of those that `shown(i)` names; where none has a value yet there is a gap. */
export function stacked(lines, shown) {
  let below = null;
  return lines.map((line, i) => {
    if (!shown(i)) return line.map(() => null);
    const sums = line.map((value, at) => (value === null && !below ? null : (below?.[at] ?? 0) + (value ?? 0)));
    below = sums;
    return sums;
  });
}

/** Rows of numbers as CSV; a missing value is an empty field. */
export function csv(header, columns) {
  const field = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = columns[0].map((_, i) => columns.map((column) => field(column[i])).join(","));
  return [header.map(inert).map(field).join(","), ...lines].join("\r\n") + "\r\n";
}

/** A cell that no spreadsheet computes: an environment writes names too. */
function inert(text) {
  return /^[=+\-@\t\r']/.test(text) ? `'${text}` : text;
}

/**
 * Times of a run as seconds since its first row, so that runs of different days lie over each other.
 */
export function sinceStart(column, start) {
  return { ...column, time: column.time.map((time) => time - start) };
}

// The metrics of a run as they grow: read once, then followed by server-sent events.

import { useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { get, of } from "./api.js";
import { addRows, emptyTable } from "./series.js";

const POLL_SECONDS = 5;
const OPEN_SECONDS = 4; // after which a stream that does not open is given up: other tabs hold the connections
const AGAIN_SECONDS = 30; // after which one is tried again
const QUIET_SECONDS = 60; // after which a stream is opened again: the other end may be gone without a word

/**
 * Follows the runs of a page while it is looked at: fills each `run.table` and calls `changed` after each addition.
 * One stream for all of them, as a browser keeps six connections to one server over all its tabs; where none opens,
 * the runs are asked every few seconds.
 */
class Following {
  constructor(runs, changed) {
    Object.assign(this, { runs, changed, source: null, timer: null, delay: 1, ended: false, round: 0, streamless: 0 });
    this.turned = () => (document.hidden ? this.pause() : this.begin());
    document.addEventListener("visibilitychange", this.turned);
    this.begin();
  }

  /** Read what is missing, then listen. */
  async begin() {
    this.pause();
    const round = this.round;
    await Promise.all(this.runs.map((run) => this.read(run, round)));
    if (this.stale(round)) return;
    const failed = this.runs.some((run) => run.error !== null);
    this.delay = failed ? Math.min(2 * this.delay, 30) : 1;
    if (failed) this.later(this.delay);
    else if (performance.now() < this.streamless) this.later(POLL_SECONDS);
    else this.listen(round);
  }

  /** Whether something newer was begun since. */
  stale(round) {
    return this.ended || round !== this.round;
  }

  later(seconds) {
    clearTimeout(this.timer);
    if (!this.ended && !document.hidden) this.timer = setTimeout(() => this.begin(), 1000 * seconds);
  }

  /** Read what the file of a run holds beyond what is known, piece by piece. */
  async read(run, round) {
    try {
      for (;;) {
        const answer = await get(of(run.key, "metrics"), { since: run.table.next, sample: run.sample ? 1 : 0 });
        if (this.stale(round)) return;
        if (answer.restart) Object.assign(run, { table: emptyTable(), start: null, sample: false });
        else if (answer.rows.length === 0) break;
        else add(run, answer);
        if (answer.sample) run.sample = true;
      }
      Object.assign(run, { error: null, loaded: true });
    } catch (error) {
      if (!this.stale(round)) run.error = error;
    }
    this.changed();
  }

  listen(round) {
    if (document.hidden) return;
    const asked = this.runs.map((run) => ["run", `${run.key},${run.table.next},${run.sample ? 1 : 0}`]);
    const source = new EventSource(`/api/events?${new URLSearchParams(asked)}`);
    this.source = source;
    let open = false;
    const wait = (seconds) => {
      clearTimeout(this.timer);
      this.timer = setTimeout(lost, 1000 * seconds);
    };
    const lost = () => {
      if (this.stale(round)) return;
      this.pause();
      if (!open) this.streamless = performance.now() + 1000 * AGAIN_SECONDS;
      this.later(open ? 2 : 0);
    };
    const on = (name, act) =>
      source.addEventListener(name, (event) => {
        wait(QUIET_SECONDS);
        const answer = event.data ? JSON.parse(event.data) : {};
        act(this.runs.find((run) => run.key === answer.run) ?? null, answer);
      });
    wait(OPEN_SECONDS);
    on("open", () => (open = true));
    on("metrics", (run, answer) => {
      if (run === null || answer.next === run.table.next) return;
      add(run, answer);
      this.changed();
    });
    on("trajectories", (run, { count }) => {
      if (run !== null) run.trajectories = count;
      this.changed();
    });
    on("restart", () => this.begin());
    source.addEventListener("error", lost);
  }

  /** Hold nothing open. */
  pause() {
    this.round += 1;
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    for (const run of this.runs) run.trajectories = null; // the list of runs has a newer count from now on
  }

  end() {
    this.pause();
    this.ended = true;
    document.removeEventListener("visibilitychange", this.turned);
  }
}

function add(run, { rows, next }) {
  addRows(run.table, rows, next);
  run.start ??= rows[0].time;
}

/** Milliseconds between two drawings: the longer the runs, the rarer, so that drawing never takes all the time. */
function patience(runs) {
  return 100 + Math.max(0, ...[...runs.values()].map((run) => run.table.rows)) / 50;
}

function unread(key) {
  return { key, table: emptyTable(), error: null, loaded: false, start: null, trajectories: null };
}

/** The runs of `keys`, each with its growing table: [runs, version]; `version` counts the additions. */
export function useLive(keys, names, colours) {
  const [version, setVersion] = useState(0);
  const known = useRef(new Map());
  const list = keys.join("\n");
  useEffect(() => {
    let waiting = null;
    const changed = () => {
      waiting ??= setTimeout(() => {
        waiting = null;
        setVersion((n) => n + 1);
      }, patience(known.current));
    };
    const followed = keys.map((key) => {
      if (!known.current.has(key)) known.current.set(key, unread(key));
      return known.current.get(key);
    });
    const following = new Following(followed, changed);
    changed();
    return () => {
      clearTimeout(waiting);
      following.end();
    };
  }, [list]);
  const runs = keys.map((key, i) => {
    const run = known.current.get(key) ?? unread(key);
    return Object.assign(run, { name: names(key), colour: colours[i % colours.length] });
  });
  return [runs, version];
}

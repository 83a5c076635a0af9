// The metrics of a run as they grow: read once, then asked for what is new.

import { useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { get, of } from "./api.js";
import { addRows, emptyTable } from "./series.js";

const POLL_SECONDS = 2;
const LONGEST_PAUSE = 30; // seconds between two tries where the server does not answer

/**
 * Follows the runs of a page while it is looked at: fills each `run.table` and calls `changed` after each addition.
 * Requests are short and none stays open: a browser keeps six connections to one server over all its tabs.
 */
class Following {
  constructor(runs, changed) {
    Object.assign(this, { runs, changed, timer: null, delay: POLL_SECONDS, ended: false, round: 0 });
    this.turned = () => (document.hidden ? this.pause() : this.begin());
    document.addEventListener("visibilitychange", this.turned);
    this.begin();
  }

  /** Read what is missing, then wait. */
  async begin() {
    this.pause();
    const round = this.round;
    await Promise.all(this.runs.map((run) => this.read(run, round)));
    if (this.stale(round)) return;
    const failed = this.runs.some((run) => run.error !== null);
    this.delay = failed ? Math.min(2 * this.delay, LONGEST_PAUSE) : POLL_SECONDS;
    if (!document.hidden) this.timer = setTimeout(() => this.begin(), 1000 * this.delay);
  }

  /** Whether something newer was begun since. */
  stale(round) {
    return this.ended || round !== this.round;
  }

  /** Read what the file of a run holds beyond what is known, piece by piece. */
  async read(run, round) {
    let news = run.error !== null;
    try {
      for (;;) {
        const answer = await get(of(run.key, "metrics"), { since: run.table.next, sample: run.sample ? 1 : 0 });
        if (this.stale(round)) return;
        if (answer.restart) Object.assign(run, { table: emptyTable(), start: null, sample: false });
        else if (answer.rows.length === 0) break;
        else add(run, answer);
        if (answer.sample) run.sample = true;
        news = true;
      }
      run.error = null;
    } catch (error) {
      if (this.stale(round)) return;
      run.error = error;
      news = true;
    }
    if (news) this.changed();
  }

  pause() {
    this.round += 1;
    clearTimeout(this.timer);
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
  return { key, table: emptyTable(), error: null, start: null };
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

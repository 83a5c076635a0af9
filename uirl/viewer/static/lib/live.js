// The metrics of a run as they grow: read once, then followed by server-sent events.

import { useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { get, of } from "./api.js";
import { withQuery } from "./router.js";
import { addRows, emptyTable } from "./series.js";

const MOST_STREAMS = 3; // a browser keeps six connections to one server; pictures and answers need the others
const POLL_SECONDS = 5;
const QUIET_SECONDS = 60; // after which a stream is opened again: the other end may be gone without a word

/** Follows one run: fills `run.table` and calls `changed` after each addition. */
class Follower {
  constructor(run, streams, changed) {
    Object.assign(this, { run, streams, changed, ended: false, source: null, timer: null, delay: 1 });
    this.begin();
  }

  async begin() {
    try {
      await this.read();
      this.delay = 1;
      if (this.ended) return;
      if (this.streams) this.listen();
      else this.later(POLL_SECONDS);
    } catch (error) {
      this.run.error = error;
      this.changed();
      this.delay = Math.min(2 * this.delay, 30);
      this.later(this.delay);
    }
  }

  later(seconds) {
    clearTimeout(this.timer);
    if (!this.ended) this.timer = setTimeout(() => this.begin(), 1000 * seconds);
  }

  /** Read what the file holds beyond what is known, piece by piece. */
  async read() {
    for (;;) {
      const answer = await get(of(this.run.key, "metrics"), this.asked());
      if (this.ended) return;
      if (answer.restart) Object.assign(this.run, { table: emptyTable(), start: null, sample: false });
      else if (answer.rows.length === 0) break;
      else this.add(answer);
      if (answer.sample) this.run.sample = true;
    }
    this.run.error = null;
    this.run.loaded = true;
    this.changed();
  }

  /** From where on: one who has a sample is told to begin again once there is more. */
  asked() {
    return { since: this.run.table.next, sample: this.run.sample ? 1 : 0 };
  }

  add({ rows, next }) {
    addRows(this.run.table, rows, next);
    this.run.start ??= rows[0].time;
  }

  listen() {
    this.source = new EventSource(of(this.run.key, "events") + withQuery(this.asked()));
    const again = (seconds) => {
      this.source?.close();
      this.source = null;
      this.later(seconds);
    };
    const heard = () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => again(0), 1000 * QUIET_SECONDS);
    };
    this.source.addEventListener("open", heard);
    this.source.addEventListener("metrics", (event) => {
      heard();
      const answer = JSON.parse(event.data);
      if (answer.next === this.run.table.next) return;
      this.add(answer);
      this.changed();
    });
    this.source.addEventListener("trajectories", (event) => {
      heard();
      this.run.trajectories = JSON.parse(event.data).count;
      this.changed();
    });
    this.source.addEventListener("restart", () => again(0));
    this.source.addEventListener("error", () => again(2));
  }

  end() {
    this.ended = true;
    clearTimeout(this.timer);
    this.source?.close();
  }
}

/** Milliseconds between two drawings: the longer the runs, the rarer, so that drawing never takes all the time. */
function patience(runs) {
  return 100 + Math.max(0, ...[...runs.values()].map((run) => run.table.rows)) / 50;
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
    const followers = keys.map((key, i) => {
      if (!known.current.has(key))
        known.current.set(key, { key, table: emptyTable(), error: null, loaded: false, start: null });
      return new Follower(known.current.get(key), i < MOST_STREAMS, changed);
    });
    changed();
    return () => {
      clearTimeout(waiting);
      followers.forEach((follower) => follower.end());
    };
  }, [list]);
  const runs = keys.map((key, i) => {
    const run = known.current.get(key) ?? { key, table: emptyTable(), error: null, loaded: false, start: null };
    return Object.assign(run, { name: names(key), colour: colours[i % colours.length] });
  });
  return [runs, version];
}

// Labels on their way to the server: one writer per episode, whichever page asks. Its changes go one after the other,
// each only with the fields that changed; the server puts them to what it has.

import { useEffect, useMemo, useState } from "../vendor/htm-preact.js";
import { of, send } from "./api.js";
import { lastList } from "./list.js";

const REMOVE = Symbol("remove");
const NONE = { passed: null, error_step: null, note: "" };
const writers = new Map();

/** A label after a change to it. */
function changed(label, change) {
  return change === REMOVE ? null : { ...(label ?? NONE), ...change };
}

/** The label of one episode: what the server has, what is on its way there, and the note that is being typed. */
class Writer {
  constructor(run, id, key) {
    Object.assign(this, { run, id, key, known: null, sending: null, waiting: [], draft: null, error: null });
    this.listeners = new Set();
  }

  /** What is shown: the label with all that is on its way. */
  get label() {
    return [this.sending, ...this.waiting].filter((one) => one !== null).reduce(changed, this.known);
  }

  /** Whether something is not stored yet. */
  get busy() {
    return this.sending !== null || this.waiting.length > 0;
  }

  /** Take what a page was answered; what is on its way, or came back later, is newer. */
  learn(label) {
    if (!this.busy && !(label && this.known && label.time < this.known.time)) this.known = label;
  }

  /** Change some fields. */
  write(fields) {
    const last = this.waiting.at(-1);
    if (last !== undefined && last !== REMOVE) this.waiting[this.waiting.length - 1] = { ...last, ...fields };
    else this.waiting.push(fields);
    this.next();
  }

  remove() {
    this.draft = null;
    this.waiting = [REMOVE];
    this.next();
  }

  /** Keep the note as it is being typed; `settle` writes it. */
  type(note) {
    this.draft = note;
    this.tell();
  }

  settle() {
    const note = this.draft;
    this.draft = null;
    if (note !== null && note !== (this.label?.note ?? "")) this.write({ note });
  }

  /** Send the next change once the one before was answered, or at once where there is no time (`leaving`). */
  async next(leaving = false) {
    this.tell();
    if ((this.sending !== null && !leaving) || this.waiting.length === 0) return;
    const change = this.waiting.shift();
    this.sending = change;
    try {
      const place = of(this.run, "trajectories", this.id, "label");
      const answer = await (change === REMOVE ? send("DELETE", place) : send("PUT", place, change));
      this.known = change === REMOVE ? null : answer;
      this.error = null;
      lastList(this.run)?.relabel(this.id, this.known);
      this.sending = null;
    } catch (error) {
      this.sending = null;
      this.failed(change, error);
      return;
    }
    this.next(leaving);
  }

  /** What was refused is gone, but for a note; what could not be stored is tried again with the next change. */
  failed(change, error) {
    this.error = error;
    if (error.status >= 400 && error.status < 500) this.draft ??= change.note ?? null;
    else if (!this.waiting.includes(REMOVE)) {
      const [next, ...rest] = this.waiting;
      const alone = next === undefined || change === REMOVE;
      this.waiting = alone ? [change, ...this.waiting] : [{ ...change, ...next }, ...rest];
    }
    this.tell();
  }

  tell() {
    for (const listener of [...this.listeners]) listener();
  }

  /** Call `listener` after each change; returns what ends that. */
  listen(listener) {
    writers.set(this.key, this);
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0 && !this.busy && this.draft === null) writers.delete(this.key);
    };
  }
}

/** The writer of an episode, the same for every page. */
function writerOf(run, id) {
  const key = `${run}\n${id}`;
  if (!writers.has(key)) writers.set(key, new Writer(run, id, key));
  return writers.get(key);
}

/** Who leaves while a note is being typed loses nothing: requests go on when the page is gone (`keepalive`). */
addEventListener("pagehide", () => {
  for (const writer of writers.values()) {
    writer.settle();
    writer.next(true);
  }
});

/** Who wants to be drawn again when one of the labels changes. */
function useWriters(all) {
  const [, wake] = useState(0);
  useEffect(() => {
    const ends = all.map((one) => one.listen(() => wake((n) => n + 1)));
    return () => ends.forEach((end) => end());
  }, [all]);
}

/** The label of an episode, `first` as it was read: {label, error, note, busy, change, remove, type, settle, again}. */
export function useLabel(run, id, first) {
  const writer = useMemo(() => writerOf(run, id), [run, id]);
  useMemo(() => writer.learn(first), [writer, first]);
  useWriters(useMemo(() => [writer], [writer]));
  useEffect(() => () => writer.settle(), [writer]);
  const label = writer.label;
  return {
    label,
    error: writer.error,
    busy: writer.busy,
    note: writer.draft ?? label?.note ?? "",
    change: (fields) => writer.write(fields),
    remove: () => writer.remove(),
    type: (note) => writer.type(note),
    settle: () => writer.settle(),
    again: () => writer.next(),
  };
}

/** The members of a group with their labels as they are now: {members, error, change, remove}. */
export function useLabels(run, members) {
  const all = useMemo(() => members.map((one) => writerOf(run, one.id)), [run, members]);
  useMemo(() => all.forEach((writer, i) => writer.learn(members[i].label)), [all]);
  useWriters(all);
  const now = all.map((writer) => writer.label);
  const labelled = useMemo(() => members.map((one, i) => ({ ...one, label: now[i] })), [members, JSON.stringify(now)]);
  return {
    members: labelled,
    error: all.find((writer) => writer.error)?.error ?? null,
    change: (member, fields) => writerOf(run, member.id).write(fields),
    remove: (member) => writerOf(run, member.id).remove(),
  };
}

/** The fields of one press of e: the error stands in this turn, and an episode with an error has failed. */
export function errorAt(turn, old) {
  return old?.error_step === turn ? { error_step: null } : { error_step: turn, passed: false };
}

// The list of trajectories that was looked at last: its pages as they were read, and who stands beside whom in it.

import { get, of } from "./api.js";

export const PAGE = 100;

/** Rows of one run under one query, read page by page. */
export class List {
  constructor(key, query) {
    Object.assign(this, {
      key,
      query,
      rows: [],
      cursor: undefined,
      count: null,
      error: null,
      reading: null,
      scroll: 0,
      indexed: null,
      clipped: null,
      at: 0,
    });
  }

  /** Whether all rows are here. */
  get whole() {
    return this.cursor === null;
  }

  /** Read the next page; calls that come meanwhile get the same answer. */
  more() {
    if (this.whole) return Promise.resolve();
    this.reading ??= this.read().finally(() => (this.reading = null));
    return this.reading;
  }

  async read() {
    try {
      const answer = await get(of(this.key, "trajectories"), {
        ...Object.fromEntries(new URLSearchParams(this.query)),
        limit: PAGE,
        after: this.cursor,
      });
      this.rows.push(...answer.rows);
      this.cursor = answer.next;
      this.count = answer.count ?? this.count;
      this.indexed = answer.indexed ?? null;
      this.clipped = answer.clipped ?? null;
      this.error = null;
    } catch (error) {
      this.error = error;
    }
  }

  /** Put a label that was just written into its row. */
  relabel(id, label) {
    const row = this.rows.find((one) => one.id === id);
    if (row) row.label = label;
  }

  /** Id of the row `by` places after `id`, read if need be; null at an end; undefined where `id` is not in the list. */
  async beside(id, by) {
    const at = this.rows.findIndex((row) => row.id === id);
    if (at < 0) return undefined;
    while (at + by >= this.rows.length && !this.whole && !this.error) await this.more();
    return this.rows[at + by]?.id ?? null;
  }
}

let current = null;

/** The list of a run under a query; the one of before where it is the same. */
export function listOf(key, query, { fresh = false } = {}) {
  if (fresh || current === null || current.key !== key || current.query !== query) current = new List(key, query);
  return current;
}

/** The list that was looked at last, where it is of this run; else null. */
export function lastList(key) {
  return current?.key === key ? current : null;
}

// The trajectories of a run: filters, sort and search, and a table that draws only the rows in sight.

import { useEffect, useLayoutEffect, useRef, useState } from "../vendor/htm-preact.js";
import { html } from "../lib/html.js";
import { get, of, send, useData } from "../lib/api.js";
import { useKeys } from "../lib/keys.js";
import { listOf } from "../lib/list.js";
import { number } from "../lib/format.js";
import { go, href } from "../lib/router.js";
import { Busy, Empty, Problem } from "../parts/basic.js";
import { COLUMNS, Row, ROW } from "../parts/row.js";
import { Filters } from "../parts/filters.js";

const NEW_SECONDS = 10;

/** Whether the server still builds its own index, so that filters and search do not find all yet. */
function unfinished(indexed) {
  return Boolean(indexed) && indexed.done < indexed.total;
}

/** How many trajectories came since the list was read (fewer than none: the run was made anew), and how far the
 * server's own index is: {count, indexed}. `indexed` is called when a list that was empty would not be any more. */
function useNewcomers(list, indexed) {
  const [state, setState] = useState({ count: 0, indexed: null });
  useEffect(() => {
    setState({ count: 0, indexed: null });
    const look = async () => {
      if (document.hidden || list.count === null) return;
      const answer = await get(of(list.key, "trajectories"), {
        ...Object.fromEntries(new URLSearchParams(list.query)),
        limit: 1,
      }).catch(() => null);
      if (answer === null) return;
      if (list.rows.length === 0 && unfinished(list.indexed) && answer.count > 0) indexed();
      else setState({ count: answer.count - list.count, indexed: answer.indexed ?? null });
    };
    const timer = setInterval(look, 1000 * (unfinished(list.indexed) ? 1 : NEW_SECONDS));
    return () => clearInterval(timer);
  }, [list, unfinished(list.indexed)]);
  return state;
}

function nothing(list) {
  if (unfinished(list.indexed)) return "None yet: the index of this run is still being made.";
  return "No trajectory is like this. Take a filter away.";
}

function found(list, indexed) {
  if (list.count === null) return "";
  const { done, total } = indexed ?? list.indexed ?? { done: 0, total: 0 };
  const among = done < total ? ` among ${number(done)} of ${number(total)} indexed so far` : "";
  const cut = list.clipped;
  const part = cut ? `; of ${number(cut.episodes)} long ones only the first ${number(cut.characters)} characters` : "";
  return `${number(list.count)} found${among}${part}`;
}

/** The rows in sight of a scrolled box: [first, last, height of a row]. */
function useSight(box, count) {
  const [sight, setSight] = useState([0, 40, ROW.wide]);
  useLayoutEffect(() => {
    const look = () => {
      const height = box.current.clientWidth < 640 ? ROW.narrow : ROW.wide;
      const first = Math.max(0, Math.floor(box.current.scrollTop / height) - 10);
      setSight([first, first + Math.ceil(box.current.clientHeight / height) + 20, height]);
    };
    look();
    const fit = new ResizeObserver(look);
    fit.observe(box.current);
    box.current.addEventListener("scroll", look, { passive: true });
    const old = box.current;
    return () => {
      fit.disconnect();
      old.removeEventListener("scroll", look);
    };
  }, [count]);
  return sight;
}

function Head({ query, sortBy }) {
  const [sort, order] = [query.get("sort") ?? "number", query.get("order") ?? "desc"];
  const cell = ({ name, key, kind }) => {
    if (!key)
      return html`<th key=${name} scope="col" class=${`${kind ?? ""} unsorted`}>${name}</th>`;
    const now = key === sort;
    return html`
      <th key=${name} scope="col" class=${kind} aria-sort=${now ? `${order}ending` : "none"}>
        <button onClick=${() => sortBy(key, now && order === "desc" ? "asc" : "desc")}>
          ${name}${now ? (order === "desc" ? " ↓" : " ↑") : ""}
        </button>
      </th>
    `;
  };
  return html`<thead><tr>${COLUMNS.map(cell)}</tr></thead>`;
}

function Table({ list, query, sortBy, at, setAt, drawn, wake }) {
  const box = useRef(null);
  const [first, last, height] = useSight(box, list.rows.length);
  useEffect(() => {
    box.current.scrollTop = list.scroll;
  }, [list]);
  useEffect(() => {
    list.scroll = box.current.scrollTop;
    if (last + 20 >= list.rows.length && !list.whole && !list.error) list.more().then(wake);
  }, [first, last, list, list.rows.length]);
  useEffect(() => {
    const top = at * height;
    if (top < box.current.scrollTop) box.current.scrollTop = top;
    const bottom = top + 2 * height - box.current.clientHeight + 40;
    if (bottom > box.current.scrollTop) box.current.scrollTop = bottom;
  }, [at]);
  const rows = list.rows.slice(first, last);
  return html`
    <div class="scroll tall" ref=${box} tabindex="0" role="region" aria-label="trajectories">
      <table class="list trajectories" aria-rowcount=${list.count ?? -1}>
        <${Head} query=${query} sortBy=${sortBy} />
        <tbody>
          ${first > 0 && html`
            <tr class="space" aria-hidden="true">
              <td colspan=${COLUMNS.length} style=${{ height: `${first * height}px` }}></td>
            </tr>
          `}
          ${rows.map((row, i) => html`
            <${Row}
              key=${row.id}
              run=${list.key}
              row=${row}
              at=${first + i === at}
              choose=${() => setAt(first + i)}
              drawn=${drawn}
            />
          `)}
          ${last < list.rows.length && html`
            <tr class="space" aria-hidden="true">
              <td colspan=${COLUMNS.length} style=${{ height: `${(list.rows.length - last) * height}px` }}></td>
            </tr>
          `}
        </tbody>
      </table>
      ${list.rows.length === 0 && list.whole && html`<${Empty}>${nothing(list)}<//>`}
      ${
        !list.whole &&
        !list.error &&
        (list.reading || list.rows.length === 0) &&
        html`<${Busy} what="Reading trajectories" />`
      }
    </div>
  `;
}

/** Reading a sheet of labels that somebody filled in. */
function Sheet({ run, done }) {
  const [said, setSaid] = useState("");
  const read = async (event) => {
    const file = event.target.files[0];
    event.target.value = "";
    if (!file) return;
    try {
      // its bytes: what is no UTF-8 is refused, and no letter lost
      const answer = await send("POST", of(run, "labels.csv"), file, "text/csv");
      const unknown = answer.unknown?.length ?? 0;
      setSaid(`${answer.read ?? ""} labels read${unknown ? `, ${unknown} ids are not of this run` : ""}`);
      done();
    } catch (error) {
      setSaid(error.message);
    }
  };
  return html`
    <span role="status" class="dim">${said}</span>
    <a class="button" href=${of(run, "labels.csv")} download>Labels as CSV</a>
    <label class="button">
      Read labels
      <input class="hidden" type="file" accept=".csv,text/csv" onChange=${read} />
    </label>
  `;
}

export function Trajectories({ run, query }) {
  const text = query.toString();
  const [list, setList] = useState(() => listOf(run, text));
  const [round, wake] = useState(0);
  const facets = useData(of(run, "facets"));
  const rouse = () => wake((n) => n + 1);
  const fresh = () => (setList(listOf(run, text, { fresh: true })), facets.reload());
  useEffect(() => setList(listOf(run, text)), [run, text]);
  const setAt = (at) => ((list.at = Math.max(0, Math.min(at, list.rows.length - 1))), rouse());
  const change = (values) => go(href.trajectories(run, { ...Object.fromEntries(query), ...values }), { replace: true });
  const opened = list.rows[list.at];
  useKeys([
    { key: "j", text: "next trajectory", run: () => setAt(list.at + 1) },
    { key: "k", text: "previous trajectory", run: () => setAt(list.at - 1) },
    { key: "Enter", text: "open the trajectory", run: () => opened && go(href.trajectory(run, opened.id)) },
    { key: "g", text: "open its group", run: () => opened?.group_id && go(href.group(run, opened.group_id)) },
    { key: "/", text: "search", run: () => document.getElementById("search")?.focus() },
    { key: "r", text: "read the list again", run: fresh },
    { key: "Escape", text: "the run", run: () => go(href.run(run)) },
  ]);
  const { count: newcomers, indexed } = useNewcomers(list, fresh);
  if (list.error?.status === 404 && list.rows.length === 0)
    return html`
      <main class="page">
        <${Problem} error=${list.error} retry=${() => ((list.error = null), list.more().then(rouse))} />
        <p>
          <a href=${href.run(run)}>The run</a>
          ${" · "}
          <a href=${href.runs()}>All runs</a>
        </p>
      </main>
    `;
  return html`
    <main class="page filled">
      <div class="bar">
        <h1>Trajectories</h1>
        <span class="dim" role="status">${found(list, indexed)}</span>
        ${newcomers !== 0 && html`
          <button class="main" onClick=${fresh}>
            ${newcomers > 0 ? `${newcomers} new` : `${-newcomers} fewer now: read again`}
          </button>
        `}
        <span class="grow"></span>
        <${Sheet} run=${run} done=${fresh} />
      </div>
      <${Filters} query=${query} change=${change} facets=${facets.data} />
      <${Problem} error=${list.error} retry=${() => ((list.error = null), list.more().then(rouse))} />
      <${Table}
        list=${list}
        query=${query}
        sortBy=${(sort, order) => change({ sort, order })}
        at=${list.at}
        setAt=${setAt}
        drawn=${round}
        wake=${rouse}
      />
    </main>
  `;
}

// The frame of all pages: the bar at the top, the page that the address names, the help.

import { Component, render, useEffect, useState } from "./vendor/htm-preact.js";
import { html } from "./lib/html.js";
import { useKeys } from "./lib/keys.js";
import { href, useRoute } from "./lib/router.js";
import { choose, chosen, isDark, onTheme } from "./lib/theme.js";
import { short, visible } from "./lib/format.js";
import { Empty, Help } from "./parts/basic.js";
import { Group } from "./pages/group.js";
import { Run } from "./pages/run.js";
import { Runs } from "./pages/runs.js";
import { Trajectories } from "./pages/trajectories.js";
import { Trajectory } from "./pages/trajectory.js";

/** A page with nothing but a word on it, and the way on. */
function Nothing({ children }) {
  return html`<main class="page"><${Empty}>${children}${" "}<a href=${href.runs()}>All runs</a><//></main>`;
}

const PAGES = {
  runs: () => html`<${Runs} />`,
  run: ({ key }) => html`<${Run} keys=${[key]} />`,
  compare: ({ keys }) =>
    keys.length
      ? html`<${Run} keys=${keys} />`
      : html`<${Nothing}>No run is named.<//>`,
  trajectories: ({ key, query }) => html`<${Trajectories} run=${key} query=${query} />`,
  trajectory: ({ key, id, turn }) => html`<${Trajectory} key=${key} run=${key} id=${id} turn=${turn} />`,
  group: ({ key, group }) => html`<${Group} run=${key} group=${group} />`,
  unknown: () => html`<${Nothing}>There is no such page.<//>`,
};

/** Where the reader is, as [text, address] from the runs down. */
export function crumbs({ page, key, keys, id, group }) {
  const trail = [["runs", href.runs()]];
  if (page === "compare") trail.push([`${keys.length} compared`, href.compare(keys)]);
  if (key !== undefined) trail.push([key, href.run(key)]);
  if (["trajectories", "trajectory", "group"].includes(page)) trail.push(["trajectories", href.trajectories(key)]);
  if (page === "trajectory") trail.push([short(id), href.trajectory(key, id)]);
  if (page === "group") trail.push([`group ${short(group)}`, href.group(key, group)]);
  return trail;
}

/** A page that fails says so; the bar above it goes on working. */
class Safe extends Component {
  static getDerivedStateFromError(error) {
    return { error };
  }

  render({ children }) {
    const { error } = this.state;
    if (!error) return children;
    return html`
      <div class="problem" role="alert">
        <p>This page failed: ${error.message}</p>
        <button onClick=${() => this.setState({ error: null })}>Draw it again</button>
      </div>
    `;
  }
}

function Bar({ route, help }) {
  const trail = crumbs(route);
  const [, setTheme] = useState(0);
  useEffect(() => onTheme(() => setTheme((n) => n + 1)), []);
  const turn = () => choose(isDark() ? "light" : "dark");
  return html`
    <header class="shell">
      <a class="mark" href=${href.runs()}>
        uirl${" "}
        <b>view</b>
      </a>
      <nav aria-label="where you are">
        <ol>
          ${trail.map(([text, address], i) => html`
            <li key=${address}>
              <a href=${address} aria-current=${i === trail.length - 1 ? "page" : undefined}><bdi>${text}</bdi></a>
            </li>
          `)}
        </ol>
      </nav>
      <span class="grow"></span>
      <button
        class="plain"
        onClick=${turn}
        onDblClick=${() => choose("system")}
        title=${`${isDark() ? "light" : "dark"} (twice: as the system; now ${chosen()})`}
        aria-label=${`use ${isDark() ? "light" : "dark"} colours`}
      >
        ${isDark() ? "☀" : "☾"}
      </button>
      <button class="plain" onClick=${help} aria-label="keys">?</button>
    </header>
  `;
}

function App() {
  const route = useRoute();
  const [help, setHelp] = useState(false);
  useKeys([
    { key: "?", text: "these keys", run: () => setHelp(true) },
    { key: "d", text: "light or dark", run: () => choose(isDark() ? "light" : "dark") },
  ]);
  const trail = crumbs(route);
  useEffect(() => {
    document.title = `${visible(trail.at(-1)[0])} · uirl view`;
  }, [trail.at(-1)[0]]);
  return html`
    <${Bar} route=${route} help=${() => setHelp(true)} />
    <${Safe} key=${route.page}>${PAGES[route.page](route)}<//>
    <${Help} open=${help} close=${() => setHelp(false)} />
  `;
}

render(
  html`<${App} />`,
  document.getElementById("app"),
);

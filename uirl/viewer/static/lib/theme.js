// Light or dark: the system's preference, or what the switch says. Canvases are told when it changes.

const KEY = "uirl-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

/** "light", "dark", or "system" where the switch was not used. */
export function chosen() {
  return document.documentElement.dataset.theme ?? "system";
}

/** Whether the page is dark now. */
export function isDark() {
  return chosen() === "system" ? system.matches : chosen() === "dark";
}

/** Choose "light", "dark" or "system", and remember it where the browser allows that. */
export function choose(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // not remembered: the choice holds until the page is loaded again
  }
  tell();
}

/** Call `listener` after each change; returns what ends that. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell() {
  for (const listener of [...listeners]) listener();
}

system.addEventListener("change", tell);

const probe = document.createElement("span");
probe.hidden = true;
document.documentElement.append(probe);

/** The colour behind a custom property such as "--accent", as a canvas understands it. */
export function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

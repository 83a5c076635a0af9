// Runs before the first paint, so that a page that was switched to dark does not flash in white.
try {
  const theme = localStorage.getItem("uirl-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // storage is refused here: the system's own preference decides
}

(function collect(roots, again) {
  const likely = 'a[href], button, input:not([type=hidden]), select, textarea, label, summary, option, [onclick], '
    + '[contenteditable=""], [contenteditable=true], [tabindex]:not([tabindex="-1"]), [role=button], [role=link], '
    + '[role=checkbox], [role=radio], [role=tab], [role=menuitem], [role=option], [role=switch], [draggable=true]';
  const isHand = e => getComputedStyle(e).cursor === 'pointer';
  const above = e => e.parentElement || e.parentNode && e.parentNode.host;
  const holds = (outer, inner) => {
    while (inner && inner !== outer) inner = inner.parentNode || inner.host;
    return !!inner;
  };
  const canHost = /^(article|aside|blockquote|body|div|footer|h[1-6]|header|main|nav|p|section|span)$|-/;
  // A closed root cannot be seen from here: its host is of a name of its own, or empty and yet high.
  const mayHide = e => canHost.test(e.localName) && (e.localName.includes('-')
    || !e.firstChild && e.clientHeight > 0 && e.computedStyleMap().get('height').toString() === 'auto');
  const found = [];
  if (!again) { globalThis.uirlMarked = []; globalThis.uirlHosts = []; }
  const look = (element, root) => {
    // The pointer's shape is inherited: only the outermost element that shows a hand counts.
    const hand = isHand(element) && !(above(element) && isHand(above(element)));
    if (!element.matches(likely) && !hand) return;
    const box = element.getBoundingClientRect();
    const left = Math.max(0, box.left), right = Math.min(innerWidth, box.right);
    const top = Math.max(0, box.top), bottom = Math.min(innerHeight, box.bottom);
    if (right - left < 2 || bottom - top < 2) return;
    for (const [u, v] of [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75]]) {
      const x = left + u * (right - left), y = top + v * (bottom - top);
      const over = root.elementFromPoint(x, y);
      if (over && (holds(element, over) || holds(over, element))) {
        found.push([left, top, right, bottom, x, y, uirlMarked.push(element) - 1]);
        break;
      }
    }
  };
  const walk = root => {
    for (const element of root.querySelectorAll(root === document ? 'body *' : '*')) {
      look(element, root);
      if (uirlMarked.length >= 200) return;
      if (element.shadowRoot) walk(element.shadowRoot);
      else if (uirlHosts.length < 50 && mayHide(element)) uirlHosts.push(element);
    }
  };
  for (const root of roots) walk(root);
  return [found, uirlHosts.length];
})

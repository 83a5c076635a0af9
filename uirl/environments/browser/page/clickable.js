(() => {
  const likely = 'a[href], button, input:not([type=hidden]), select, textarea, label, summary, option, [onclick], '
    + '[contenteditable=""], [contenteditable=true], [tabindex]:not([tabindex="-1"]), [role=button], [role=link], '
    + '[role=checkbox], [role=radio], [role=tab], [role=menuitem], [role=option], [role=switch], [draggable=true]';
  const isHand = e => getComputedStyle(e).cursor === 'pointer';
  const above = e => e.parentElement || e.parentNode && e.parentNode.host;
  const holds = (outer, inner) => {
    while (inner && inner !== outer) inner = inner.parentNode || inner.host;
    return !!inner;
  };
  const elements = [], found = [];
  const look = (element, root) => {
    // The pointer's shape is inherited: only the outermost element that shows a hand counts.
    const hand = isHand(element) && !(above(element) && isHand(above(element)));
    if (!element.matches(likely) && !hand) return;
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) return;
    const left = Math.max(0, box.left), right = Math.min(innerWidth, box.right);
    const top = Math.max(0, box.top), bottom = Math.min(innerHeight, box.bottom);
    let free = null;
    for (const [u, v] of [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75]]) {
      if (right - left < 2 || bottom - top < 2) break;
      const x = left + u * (right - left), y = top + v * (bottom - top);
      const over = root.elementFromPoint(x, y);
      if (over && (holds(element, over) || holds(over, element))) {
        free = [x, y];
        break;
      }
    }
    elements.push(element);
    found.push([box.left, box.top, box.right, box.bottom, free]);
  };
  const walk = root => {
    for (const element of root.querySelectorAll(root === document ? 'body *' : '*')) {
      if (elements.length >= 400) return;
      look(element, root);
      if (element.shadowRoot) walk(element.shadowRoot);
    }
  };
  walk(document);
  return {elements, found: JSON.stringify(found)};
})()

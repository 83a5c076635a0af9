(() => {
  const likely = 'a[href], area[href], button, input:not([type=hidden]), select, textarea, label, summary, option, '
    + '[onclick], [contenteditable]:not([contenteditable=false]), [tabindex]:not([tabindex="-1"]), [role=button], '
    + '[role=link], [role=checkbox], [role=radio], [role=tab], [role=menuitem], [role=option], [role=switch], '
    + '[draggable=true]';
  const inputs = {checkbox: 'checkbox', radio: 'radio', range: 'slider', number: 'spinbutton', button: 'button',
    submit: 'button', reset: 'button', image: 'button', search: 'searchbox'};
  const tags = {a: 'link', button: 'button', select: 'combobox', textarea: 'textbox', option: 'option'};
  const roleOf = e => e.getAttribute('role') || (e.localName === 'input' ? inputs[e.type] || 'textbox'
    : e.isContentEditable ? 'textbox' : tags[e.localName] || '');
  const isHand = e => getComputedStyle(e).cursor === 'pointer';
  const above = e => e.parentElement || e.parentNode && e.parentNode.host;
  const holds = (outer, inner) => {
    while (inner && inner !== outer) inner = inner.parentNode || inner.host;
    return !!inner;
  };
  const shifted = (box, x, y) => new DOMRect(box.left + x, box.top + y, box.width, box.height);
  const areaOf = area => {
    const map = area.closest('map'), [x, y, ...rest] = area.coords.split(',').map(Number);
    const image = map && document.querySelector(`img[usemap="#${CSS.escape(map.name)}"]`);
    if (!image || !rest.length) return [];
    const all = [x, y, ...rest], even = all.filter((_, i) => !(i % 2)), odd = all.filter((_, i) => i % 2);
    const [left, top, right, bottom] = area.shape === 'circle' ? [x - rest[0], y - rest[0], x + rest[0], y + rest[0]]
      : [Math.min(...even), Math.min(...odd), Math.max(...even), Math.max(...odd)];
    const around = image.getBoundingClientRect();
    return [shifted(new DOMRect(left, top, right - left, bottom - top), around.left, around.top)];
  };
  // Where it is: in lines, as links are; by what is in it, where it has no size of its own; with its stroke.
  const partsOf = element => {
    if (element.localName === 'area') return areaOf(element);
    const seen = box => box.width && box.height;
    let parts = [...element.getClientRects()].filter(seen);
    if (!parts.length || element.ownerSVGElement)
      parts = [...element.querySelectorAll('*')].slice(0, 50).flatMap(e => [...e.getClientRects()]).filter(seen);
    if (!parts.length && element.ownerSVGElement) {
      const box = element.getBoundingClientRect(), half = (parseFloat(getComputedStyle(element).strokeWidth) || 0) / 2;
      parts = [new DOMRect(box.left - half, box.top - half, box.width + 2 * half, box.height + 2 * half)].filter(seen);
    }
    return parts;
  };
  const shares = [.5, .25, .75, .05, .95], places = shares.flatMap(u => shares.map(v => [u, v]));
  const free = (element, parts) => {
    const root = element.getRootNode();
    for (const part of parts.slice(0, 10)) {
      const left = Math.max(0, part.left), right = Math.min(innerWidth, part.right);
      const top = Math.max(0, part.top), bottom = Math.min(innerHeight, part.bottom);
      if (right - left < 2 || bottom - top < 2) continue;
      for (const [u, v] of places) {
        const x = left + u * (right - left), y = top + v * (bottom - top);
        if (holds(element, root.elementFromPoint(x, y))) return [x, y];
      }
    }
    // what a person clicks in its place
    for (const label of element.localName !== 'label' && element.labels || []) {
      const place = free(label, partsOf(label));
      if (place) return place;
    }
    return null;
  };
  const elements = [], found = [];
  const look = element => {
    // The pointer's shape is inherited: only the outermost element that shows a hand counts.
    const hand = isHand(element) && !(above(element) && isHand(above(element)));
    if (!element.matches(likely) && !hand && typeof element.onclick !== 'function') return;
    const parts = partsOf(element);
    if (!parts.length) return;
    const own = element.getBoundingClientRect(), loose = !own.width || !own.height, place = free(element, parts);
    const box = (all, low, high) => [low(...all.map(p => p.left)), low(...all.map(p => p.top)),
      high(...all.map(p => p.right)), high(...all.map(p => p.bottom))];
    const words = element.getAttribute('aria-label') || element.alt || element.textContent;
    elements.push(element);
    const [x, y] = place || [], inside = place && own.left <= x && x <= own.right && own.top <= y && y <= own.bottom;
    found.push({box: box([own], Math.min, Math.max), role: roleOf(element), loose, free: place, place,
      position: inside ? {x: x - own.left, y: y - own.top} : null,
      mark: place && box(loose ? parts : [own], (...sides) => Math.max(0, Math.min(...sides)), Math.max),
      words: words.slice(0, 400).replace(/\s+/g, ' ').trim().slice(0, 60)});
  };
  const walk = root => {
    for (const element of root.querySelectorAll(root === document ? 'body *' : '*')) {
      if (elements.length >= 400) return;
      look(element);
      if (element.shadowRoot) walk(element.shadowRoot);
    }
  };
  walk(document);
  // A place where it can be pressed, and stays for a quarter of a second; null: it does not, or something covers it.
  const place = async number => {
    const element = elements[number];
    if (!element.isConnected) return null;
    const before = free(element, partsOf(element));
    if (!before) (element.scrollIntoViewIfNeeded || element.scrollIntoView).call(element);
    const [x, y] = before || free(element, partsOf(element)) || [], root = element.getRootNode();
    if (x === undefined) return null;
    const middle = () => (box => [box.left + box.right, box.top + box.bottom])(element.getBoundingClientRect());
    const [across, down] = middle();
    for (let look = 0; look < 10; look++) {
      // by frames: between two of them nothing moves, however late they are
      await new Promise(next => { requestAnimationFrame(() => setTimeout(next, 20)); setTimeout(next, 250); });
      const over = root.elementFromPoint(x, y), [left, top] = middle();
      if (Math.abs(left - across) > 6 || Math.abs(top - down) > 6) return null;
      if (!holds(element, over) && ![...element.labels || []].some(label => holds(label, over))) return null;
    }
    return [x, y];
  };
  return {elements, place, found: JSON.stringify(found)};
})()

(frame, things) => {
  const box = frame.getBoundingClientRect(), root = frame.getRootNode(), style = getComputedStyle(frame);
  const across = box.width / frame.offsetWidth || 1, down = box.height / frame.offsetHeight || 1;
  const [before, above, after, below] = ['Left', 'Top', 'Right', 'Bottom'].map(side => parseFloat(style['padding' + side]));
  const left = box.left + (frame.clientLeft + before) * across, top = box.top + (frame.clientTop + above) * down;
  // One that is turned or mirrored has no such place.
  let turned = false;
  for (let e = frame; e; e = e.parentElement || e.parentNode && e.parentNode.host) {
    const m = e instanceof Element ? new DOMMatrix(getComputedStyle(e).transform) : new DOMMatrix();
    turned ||= !!m.b || !!m.c || m.a < 0 || m.d < 0;
  }
  const right = Math.min(innerWidth, left + (frame.clientWidth - before - after) * across);
  const bottom = Math.min(innerHeight, top + (frame.clientHeight - above - below) * down);
  const at = (x, y) => [left + x * across, top + y * down];
  const lifted = things.map(([mark, place]) => {
    if (turned || !place || root.elementFromPoint(...at(...place)) !== frame) return [null, null];
    const [x, y] = at(mark[0], mark[1]), [beyond, under] = at(mark[2], mark[3]);
    return [[Math.max(left, x, 0), Math.max(top, y, 0), Math.min(right, beyond), Math.min(bottom, under)],
      at(...place)];
  });
  return {left, top, across, down, turned, lifted};
}

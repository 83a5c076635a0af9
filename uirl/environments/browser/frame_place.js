(frame, points) => {
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
  return {left, top, across, down, turned,
    right: Math.min(innerWidth, left + (frame.clientWidth - before - after) * across),
    bottom: Math.min(innerHeight, top + (frame.clientHeight - above - below) * down),
    seen: points.map(p => !turned && !!p
      && root.elementFromPoint(left + p[0] * across, top + p[1] * down) === frame)};
}

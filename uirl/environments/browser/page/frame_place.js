(frame, points) => {
  const box = frame.getBoundingClientRect(), root = frame.getRootNode();
  const across = box.width / frame.offsetWidth || 1, down = box.height / frame.offsetHeight || 1;
  const left = box.left + frame.clientLeft * across, top = box.top + frame.clientTop * down;
  return {left, top, across, down, right: Math.min(innerWidth, left + frame.clientWidth * across),
    bottom: Math.min(innerHeight, top + frame.clientHeight * down),
    seen: points.map(p => !!p && root.elementFromPoint(left + p[0] * across, top + p[1] * down) === frame)};
}

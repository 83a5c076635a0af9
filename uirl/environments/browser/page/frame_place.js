function (points) {
  const box = this.getBoundingClientRect(), root = this.getRootNode();
  const across = box.width / this.offsetWidth || 1, down = box.height / this.offsetHeight || 1;
  const left = box.left + this.clientLeft * across, top = box.top + this.clientTop * down;
  return {left, top, across, down, right: Math.min(innerWidth, left + this.clientWidth * across),
    bottom: Math.min(innerHeight, top + this.clientHeight * down),
    seen: points.map(([x, y]) => root.elementFromPoint(left + x * across, top + y * down) === this)};
}

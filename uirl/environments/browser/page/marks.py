"""Set-of-marks: numbers drawn on what can be clicked, so that a policy may name one in place of a position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uirl.environments.browser.page.elements import Element

if TYPE_CHECKING:
    from PIL.Image import Image

CLICKABLE = """(function collect(roots, again) {
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
})"""
"""A JavaScript function: box, a free point and the place in `uirlMarked` of each element that can be clicked and seen
under the given roots, open shadow roots included, in document order, the first 200; and how many hosts there are that
may hide a closed one."""

COLOURS = ((200, 30, 30), (20, 90, 200), (10, 120, 50), (150, 60, 160), (170, 90, 0))


@dataclass(frozen=True, slots=True)
class Mark:
    """One marked element, in CSS pixels of the page. Its number is its place in the list, from 1."""

    left: float
    top: float
    right: float
    bottom: float
    x: float
    """A point of it that nothing covers."""
    y: float
    element: Element | None = None
    """What is at it; None: nobody asked."""


def draw_marks(picture: Image, boxes: Sequence[tuple[int, int, int, int]]) -> Image:
    """Return a copy of the picture with a numbered frame, from 1, around each box (left, top, right, bottom)."""
    from PIL import ImageDraw, ImageFont

    drawn = picture.copy()
    canvas = ImageDraw.Draw(drawn)
    font: Any = ImageFont.load_default(size=max(8, min(14, picture.height // 30)))
    for number, (left, top, right, bottom) in enumerate(boxes, start=1):
        colour = COLOURS[number % len(COLOURS)]
        canvas.rectangle((left, top, right, bottom), outline=colour)
        _, _, width, height = canvas.textbbox((0, 0), str(number), font=font)
        # Inside the picture, above the box where there is room: the number must not hide what it names.
        x = min(left, picture.width - int(width) - 3)
        y = top - int(height) - 2 if top > height + 2 else top
        canvas.rectangle((x, y, x + width + 2, y + height + 1), fill=colour)
        canvas.text((x + 1, y), str(number), fill="white", font=font)
    return drawn

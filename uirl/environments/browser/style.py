"""What is changed of the look of every page, so that equal states give equal pictures and the mouse reaches all."""

from __future__ import annotations

STYLE = """{
  // A caret that blinks makes two pictures of one state differ. The options of a list must open inside the page: the
  // browser's own list is a window of its own, which the mouse of the protocol does not reach.
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`
    * { caret-animation: manual !important; scroll-behavior: auto !important; }
    select:not([multiple], [size]), ::picker(select) { appearance: base-select !important; }
    @layer uirl {
      select { font: 13px Arial; padding: 0 4px; min-block-size: 19px; gap: 4px; border-radius: 2px; }
      option { min-block-size: 17px; padding: 0 4px; }
      option::checkmark { display: none; }
    }`);
  document.adoptedStyleSheets.push(sheet);
}"""
"""A script for every document."""

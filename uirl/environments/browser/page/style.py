"""What is changed of every page, so that equal states give equal pictures and the mouse reaches all."""

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
  // What a field suggests stands in a window of the browser's, which no picture shows: it is told in words.
  globalThis.uirlTold = [];
  let last = null;
  addEventListener('focusin', event => {
    const field = event.composedPath()[0];
    const list = event.isTrusted && field instanceof HTMLInputElement && field !== last && field.list;
    if (!list || uirlTold.length > 8) return;
    last = field;
    uirlTold.push('the field suggests: ' + [...list.options].slice(0, 20).map(o => o.value).join(', ').slice(0, 150));
  }, true);
}"""
"""A script for every document. What it has put into `uirlTold`, in our world, is told to the policy after an action."""

COPIES = """document.addEventListener('uirl-copied', event => {
  globalThis.uirlCopied = String(event.detail).slice(0, 1e5);
})"""
"""A script for every document, in our world: keeps what the script of the page's own world says was copied."""
PERMISSIONS = """{
  // A page that has the pointer to itself answers the protocol no more: refused, as where nobody permits it.
  Element.prototype.requestPointerLock = function requestPointerLock() {
    setTimeout(() => this.ownerDocument.dispatchEvent(new Event('pointerlockerror', {bubbles: true})));
    return Promise.reject(new DOMException('The pointer lock was not permitted.', 'NotAllowedError'));
  };
  // The browser has one clipboard for all its pages, and each page of ours has one of its own.
  if (globalThis.Clipboard) Clipboard.prototype.writeText = async function writeText(text) {
    document.dispatchEvent(new CustomEvent('uirl-copied', {detail: String(text)}));
  };
}"""
"""A script for every document, in the page's own world."""

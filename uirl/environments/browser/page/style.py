"""What is changed of every page, so that equal states give equal pictures and the mouse reaches all."""

from __future__ import annotations

from uirl.runtime.assets import read_asset

STYLE = read_asset(__package__, "style.js")
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

"""What is changed of every page, so that equal states give equal pictures and the mouse reaches all."""

from __future__ import annotations

from uirl.runtime.assets import read_asset

STYLE = read_asset(__package__, "style.js")
"""A script for every document. What it has put into `uirlTold`, in our world, is told to the policy after an action."""

COPIES = """document.addEventListener('uirl-copied', event => {
  globalThis.uirlCopied = String(event.detail).slice(0, 1e5);
})"""
"""A script for every document, in our world: keeps what the script of the page's own world says was copied."""
PERMISSIONS = read_asset(__package__, "permissions.js")
"""A script for every document, in the page's own world."""

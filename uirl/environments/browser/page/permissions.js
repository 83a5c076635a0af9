{
  // A page that has the pointer to itself answers the protocol no more: refused, as where nobody permits it.
  Element.prototype.requestPointerLock = function requestPointerLock() {
    setTimeout(() => this.ownerDocument.dispatchEvent(new Event('pointerlockerror', {bubbles: true})));
    return Promise.reject(new DOMException('The pointer lock was not permitted.', 'NotAllowedError'));
  };
  // The browser has one clipboard for all its pages, and each page of ours has one of its own.
  if (globalThis.Clipboard) Clipboard.prototype.writeText = async function writeText(text) {
    document.dispatchEvent(new CustomEvent('uirl-copied', {detail: String(text)}));
  };
}

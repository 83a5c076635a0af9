(() => {
  const tell = globalThis.uirlTell;
  delete globalThis.uirlTell;
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
  let last = null, suggested = 0;
  addEventListener('focusin', event => {
    const field = event.composedPath()[0];
    const list = event.isTrusted && field instanceof HTMLInputElement && field !== last && field.list;
    if (!list || ++suggested > 100) return;
    last = field;
    tell('words', 'the field suggests: '
      + [...list.options].slice(0, 20).map(o => o.value).join(', ').slice(0, 150));
  }, true);
  // The browser has one clipboard for all its pages, and each page of ours has one of its own.
  const copied = text => text && tell('copied', String(text).slice(0, 1e5));
  const selected = () => {
    let field = document.activeElement;
    while (field && field.shadowRoot && field.shadowRoot.activeElement) field = field.shadowRoot.activeElement;
    if (!field || typeof field.selectionStart !== 'number') return String(getSelection());
    return field.type === 'password' ? '' : field.value.slice(field.selectionStart, field.selectionEnd);
  };
  let copying = null;
  for (const kind of ['copy', 'cut'])
    addEventListener(kind, event => {
      const now = copying = {event, text: selected(), own: ''};
      setTimeout(() => copied(event.defaultPrevented ? now.own : now.text));
    }, true);
  const setData = DataTransfer.prototype.setData;
  DataTransfer.prototype.setData = function (kind, text) {
    if (copying && copying.event.clipboardData === this && /^text(\/plain)?$/i.test(kind)) copying.own = String(text);
    return setData.call(this, kind, text);
  };
  if (globalThis.Clipboard) {
    Clipboard.prototype.writeText = async function writeText(text) { copied(text); };
    Clipboard.prototype.write = async function write(items) {
      for (const item of items)
        if (item.types.includes('text/plain')) copied(await (await item.getType('text/plain')).text());
    };
  }
  // A page that has the pointer to itself answers the protocol no more: refused, as where nobody permits it.
  Element.prototype.requestPointerLock = function requestPointerLock() {
    setTimeout(() => this.ownerDocument.dispatchEvent(new Event('pointerlockerror', {bubbles: true})));
    return Promise.reject(new DOMException('The pointer lock was not permitted.', 'NotAllowedError'));
  };
  // A person sees into a closed shadow root, and so must what lists the things on a page.
  const attach = Element.prototype.attachShadow;
  Element.prototype.attachShadow = function attachShadow(init) { return attach.call(this, {...init, mode: 'open'}); };
})();

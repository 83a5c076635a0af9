{
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
}

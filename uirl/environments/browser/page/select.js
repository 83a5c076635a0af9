function (wanted) {
  let list = this.closest('select') || this;
  if (list.localName === 'label' && list.control) list = list.control;
  const options = [...(list.localName === 'select' ? list.options : list.list ? list.list.options : [])];
  if (!options.length) return `<${list.localName}> has no options`;
  if (list.disabled) return 'the list is disabled';
  const text = o => (o.label || o.textContent).trim();
  const chosen = wanted.map(word => options.find(o => o.value === word) || options.find(o => text(o) === word.trim()));
  const missing = wanted[chosen.findIndex(o => !o || o.disabled)];
  if (missing !== undefined)
    return `there is no option ${missing.slice(0, 40)}; expected of ${options.slice(0, 20).map(text).join(', ')}`;
  if (chosen.length > 1 && !list.multiple) return 'the list takes one option';
  if (list.localName === 'select') {
    if (!chosen.length && !list.multiple) return 'the list takes one option, and none was named';
    for (const option of options) option.selected = chosen.includes(option);
  } else {
    list.value = chosen.length ? chosen[0].value : '';
  }
  list.focus();
  list.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
  list.dispatchEvent(new Event('change', {bubbles: true}));
  return '';
}

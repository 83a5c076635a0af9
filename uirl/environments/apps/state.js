// What the hand of a demonstrator needs: the links to some pages, the fields of the form, the button that sends it.
(({links, submit}) => {
  const drawn = element => {
    const box = element.getBoundingClientRect();
    return box.width && box.height ? [box.left + box.width / 2, box.top + box.height / 2] : null;
  };
  const found = {};
  for (const link of document.querySelectorAll('a[href]')) {
    const path = new URL(link.href, location).pathname, at = drawn(link);
    if (at && links.includes(path) && !found[path]) found[path] = at;
  }
  const fields = {};
  for (const field of document.querySelectorAll('form [name]')) {
    const at = drawn(field), list = field.localName === 'select';
    if (at) fields[field.name] = {
      at, list, box: field.type === 'checkbox',
      value: list ? (field.selectedOptions[0]?.label ?? '').trim() : field.type === 'checkbox' ? field.checked : field.value,
    };
  }
  const button = submit ? document.querySelector(submit) : null;
  return {path: location.pathname, links: found, fields, submit: button && drawn(button)};
})(WANTED)

(() => {
  const middle = element => {
    const box = element.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const fields = [...document.querySelectorAll('input')].map(e => ({
    name: e.name, value: e.value, at: middle(e), focused: e === document.activeElement,
    selected: e.value !== '' && e.selectionStart === 0 && e.selectionEnd === e.value.length,
  }));
  return {sent, fields, button: middle(document.querySelector('button'))};
})()

function () {
  let field = this;
  if (field.localName === 'label' && field.control) field = field.control;
  field.scrollIntoViewIfNeeded();
  field.focus();
  let active = document.activeElement;
  while (active && active.shadowRoot && active.shadowRoot.activeElement) active = active.shadowRoot.activeElement;
  return field.getRootNode().activeElement === field ? '' : `<${field.localName}> does not take the keyboard`;
}

function (value) {
  let field = this;
  if (field.localName === 'label' && field.control) field = field.control;
  if (field.disabled || field.readOnly) return 'it is disabled or can only be read';
  field.scrollIntoViewIfNeeded();
  if (field.isContentEditable) {
    field.focus();
    getSelection().selectAllChildren(field);
    return '';
  }
  const lines = /^(text|search|email|url|tel|password|number|)$/;
  if (field.localName === 'textarea' || field.localName === 'input' && lines.test(field.type)) {
    field.focus();
    field.select();
    return '';
  }
  if (field.localName !== 'input' || /^(checkbox|radio|file|button|submit|reset|image|hidden)$/.test(field.type))
    return `<${field.localName}${field.type ? ' type=' + field.type : ''}> is no field for text`;
  field.focus();
  field.value = value;
  if (field.value !== value) return `a field of the type ${field.type} does not take ${value.slice(0, 40)}`;
  field.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
  field.dispatchEvent(new Event('change', {bubbles: true}));
  return null;
}

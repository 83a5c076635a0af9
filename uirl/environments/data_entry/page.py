"""The page: a sheet (or a slip with the value to copy) and a form. Its scripts know no score."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_PAGE = r"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Contacts</title>
<style>
  :root { --ink: #1f2733; --soft: #6b7788; --line: #dde3ea; --accent: #2563eb; --wash: #f3f6fa; }
  * { box-sizing: border-box; margin: 0; }
  body { height: 100vh; display: flex; overflow: hidden; color: var(--ink); background: var(--wash);
         font: 14px/1.4 "Helvetica Neue", Arial, "Liberation Sans", sans-serif; }
  .sheet { flex: 1.25; min-width: 0; display: flex; flex-direction: column; background: #fff;
           border-right: 1px solid var(--line); }
  .sheet header { display: flex; align-items: center; gap: 10px; padding: 12px 16px; font-weight: 600;
                  border-bottom: 1px solid var(--line); }
  .sheet header i { width: 16px; height: 20px; border-radius: 3px; background: #16a34a; position: relative; }
  .sheet header i::after { content: ""; position: absolute; inset: 6px 3px; border: 2px solid #fff;
                           border-width: 2px 0; }
  .sheet header small { margin-left: auto; color: var(--soft); font-weight: 400; font-size: 12px; }
  .rows { flex: 1; overflow: auto; }
  table { border-collapse: collapse; width: 100%; }
  th, td { border-bottom: 1px solid var(--line); border-right: 1px solid var(--line); padding: 6px 10px;
           text-align: left; white-space: nowrap; }
  thead th { position: sticky; top: 0; background: #eef2f7; color: var(--soft); font-weight: 600; font-size: 12px;
             text-align: center; padding: 3px; }
  tbody th { width: 34px; background: #eef2f7; color: var(--soft); font-weight: 400; font-size: 12px;
             text-align: center; padding: 6px 4px; }
  tr.names td { font-weight: 600; background: #f8fafc; }
  main { flex: 1; min-width: 0; display: flex; align-items: center; justify-content: center; padding: 16px; }
  form { width: 100%; max-width: 360px; background: #fff; border: 1px solid var(--line); border-radius: 12px;
         border-top: 6px solid var(--accent); padding: 18px 20px 14px;
         box-shadow: 0 6px 24px rgba(31, 39, 51, .08); }
  h1 { font-size: 19px; }
  form p { color: var(--soft); font-size: 12px; margin: 2px 0 12px; }
  label { display: block; font-weight: 600; font-size: 12px; margin-top: 10px; }
  input { width: 100%; margin-top: 4px; padding: 8px 10px; border: 1px solid #c5cedb; border-radius: 8px;
          font-family: inherit; font-size: 14px; color: inherit; background: #fff; }
  input:focus { outline: 2px solid var(--accent); outline-offset: -1px; border-color: var(--accent); }
  button { margin-top: 16px; width: 100%; padding: 9px; border: 0; border-radius: 8px; background: var(--accent);
           color: #fff; font: inherit; font-weight: 600; cursor: pointer; }
  form footer { margin-top: 10px; color: var(--soft); font-size: 12px; text-align: right; }
  .narrow .sheet header small, .narrow form p { display: none; }
  .narrow .sheet header { padding: 8px 10px; }
  .narrow th, .narrow td { padding: 5px 6px; }
  .narrow main { padding: 8px; }
  .narrow form { padding: 10px 12px 8px; }
  .narrow h1 { font-size: 15px; }
  .slip { position: absolute; display: flex; align-items: center; justify-content: center; background: #fff;
          border: 2px solid var(--ink); font: 700 0/1 Arial, "Liberation Sans", sans-serif; }
  .plain form { display: contents; }
  .plain input, .plain button { position: absolute; margin: 0; padding: 0 6px; border-radius: 6px; }
  .plain input { border: 2px solid #64748b; font: 700 0 Arial, "Liberation Sans", sans-serif; }
</style>
</head>
<body>
<script>
'use strict';
const task = __TASK__;
const make = (name, parent, text = '', css = '') => {
  const element = document.createElement(name);
  element.textContent = text;
  if (css) element.className = css;
  return parent.appendChild(element);
};
const names = Object.keys(task.labels);
const body = document.body;
let sent = 0, slip = null;

function makeSheet() {
  const sheet = make('section', body, '', 'sheet');
  const head = make('header', sheet);
  make('i', head);
  make('span', head, 'Contacts');
  make('small', head, `${task.rows.length} rows`);
  const table = make('table', make('div', sheet, '', 'rows'));
  const letters = make('tr', make('thead', table));
  make('th', letters);
  names.forEach((_, column) => make('th', letters, String.fromCharCode(65 + column)));
  const rows = make('tbody', table);
  const titles = make('tr', rows, '', 'names');
  make('th', titles, 1);
  for (const name of names) make('td', titles, task.labels[name]);
  task.rows.forEach((row, index) => {
    const line = make('tr', rows);
    make('th', line, index + 2);
    for (const name of names) make('td', line, row[name]);
  });
}

function place(element, [left, top, width, height], letters) {
  const box = {left, top, width, height, fontSize: letters * height};
  for (const side in box) element.style[side] = `${box[side]}px`;
}

function makeForm() {
  const form = make('form', task.places ? body : make('main', body));
  form.autocomplete = 'off';
  if (!task.places) {
    make('h1', form, 'New contact');
    make('p', form, 'Copy a row of the sheet, then submit it.');
  }
  for (const name of names) {
    const holder = task.places ? form : make('label', form, task.labels[name]);
    const input = make('input', holder);
    input.name = name;
    input.spellcheck = false;
  }
  make('button', form, 'Submit');
  const counter = task.places ? null : make('footer', form, 'Submitted: 0');
  form.addEventListener('submit', event => {
    event.preventDefault();
    form.reset();
    sent += 1;
    if (counter) counter.textContent = `Submitted: ${sent}`;
    if (slip) slip.textContent = task.rows[sent % task.rows.length][names[0]];
    form.elements[names[0]].focus();
  });
  return form;
}

if (task.places) {
  body.classList.add('plain');
  slip = make('div', body, task.rows[0][names[0]], 'slip');
} else {
  makeSheet();
}
const form = makeForm();
if (innerWidth < 640) body.classList.add('narrow');
if (task.places) {
  place(slip, task.places.slip, 0.9);
  place(form.elements[names[0]], task.places.field, 0.75);
  place(form.querySelector('button'), task.places.button, 0.42);
}
form.elements[names[0]].focus();
</script>
</body>
</html>
"""

WATCH = """const sent = [];
addEventListener('submit', event => {
  if (event.isTrusted && event.target.tagName === 'FORM')
    sent.push(Object.fromEntries([...event.target.querySelectorAll('input')].map(e => [e.name, e.value])));
}, true);"""
"""Runs apart from the page: what every submission held, at the moment it was made."""

STATE = """(() => {
  const middle = element => {
    const box = element.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const fields = [...document.querySelectorAll('input')].map(e => ({
    name: e.name, value: e.value, at: middle(e), focused: e === document.activeElement,
    selected: e.value !== '' && e.selectionStart === 0 && e.selectionEnd === e.value.length,
  }));
  return {sent, fields, button: middle(document.querySelector('button'))};
})()"""
"""What was sent, and where the hand of a demonstrator must go."""


def render_page(task: Mapping[str, Any]) -> str:
    """Return the page as HTML. `task`: `labels` (field -> words), `rows`, `places` of slip, field, button, or None."""
    # Inside a script element '<' could end it.
    return _PAGE.replace("__TASK__", json.dumps(task).replace("<", "\\u003c"))

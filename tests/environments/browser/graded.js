// How pages of MiniWoB++ that pay for a part are played: page -> policy -> what it does there. `lazy` does next to
// nothing, `wrong` a part, `right` what is asked.
(() => {
  const all = selector => [...document.querySelectorAll(selector)], one = selector => document.querySelector(selector);
  const at = (element, kind, x = 0, y = 0) =>
    element.dispatchEvent(new MouseEvent(kind, {clientX: x, clientY: y, bubbles: true, view: window}));
  const number = (element, name) => Number(element.getAttribute(name));
  const place = element => [number(element, 'cx'), number(element, 'cy')];
  const goal = one('#query').textContent;
  const submit = () => one('#subbtn, #submit, #controls button').click();
  const then = work => async () => {
    work();
    await new Promise(again => setTimeout(again));  // the click that ends a drag is none
    submit();
  };

  // a point of the picture below the instruction, which is 50 pixels high
  const point = (x, y) => at(one('svg'), 'click', x, y + 50);
  const unit = ([ax, ay], [bx, by]) => [(ax - bx) / Math.hypot(ax - bx, ay - by), (ay - by) / Math.hypot(ax - bx, ay - by)];
  const from = (vertex, [x, y]) => point(vertex[0] + 60 * x, vertex[1] + 60 * y);
  const between = share => {
    const vertex = place(one('.init-blue')), [a, b] = all('.init-black').map(e => unit(place(e), vertex));
    from(vertex, [share * a[0] + (1 - share) * b[0], share * a[1] + (1 - share) * b[1]]);
  };
  const turned = degrees => {
    const vertex = place(one('#init-blue')), [x, y] = unit(place(one('#init-black')), vertex);
    const [cos, sin] = [Math.cos(degrees * Math.PI / 180), Math.sin(degrees * Math.PI / 180)];
    from(vertex, [cos * x - sin * y, sin * x + cos * y]);
  };
  const middle = (dx = 0) => {
    const [[ax, ay], [bx, by]] = all('.black-circle').map(place);
    point((ax + bx) / 2 + dx, (ay + by) / 2);
  };
  const centre = share => {
    const circle = one('.black-circle'), [x, y] = place(circle);
    point(x + share * number(circle, 'r'), y);
  };
  const draw = points => {
    const box = one('svg').getBoundingClientRect();
    points = points.map(([x, y]) => [x + box.left, y + box.top]);
    at(one('svg'), 'mousedown', ...points[0]);
    for (const spot of points.slice(1)) at(window, 'mousemove', ...spot);
    at(window, 'mouseup', ...points[points.length - 1]);
  };
  const steps = (count, spot) => Array.from({length: count}, (_, i) => spot(i / (count - 1)));
  const ring = () => {
    const [x, y] = place(one('#circ'));
    draw(steps(25, t => [x + 25 * Math.cos(2 * Math.PI * t), y + 25 * Math.sin(2 * Math.PI * t)]));
  };
  const slanted = () => {
    const [x, y] = place(one('#circ'));
    draw(steps(9, t => [x + 50 * t - 25, y + 50 * t - 25]));
  };
  const line = off => {
    const [x, y] = place(one('#circ')), upright = goal.includes('vertical');
    draw(steps(5, t => upright ? [x + off, y + 60 * t - 30] : [x + 60 * t - 30, y + off]));
  };
  const boxes = wanted => {
    const names = goal.replace(/^Select (words similar to )?/, '').replace(/ and click Submit\.$/, '').split(', ');
    const alike = window.SYNONYMS || [];
    const means = word => names.some(name => name === word || alike.some(set => set.includes(name) && set.includes(word)));
    const right = all('label').filter(label => means(label.textContent)).map(label => label.querySelector('input'));
    right.slice(0, wanted(right.length)).forEach(box => box.click());
  };
  const card = better => {
    const value = element => Number(element.querySelector('.card-value').textContent);
    at(all('.card').reduce((a, b) => better(value(a), value(b)) ? a : b), 'click');
  };
  const numbers = order => order.forEach((n, i) => at(i ? one(`svg rect[data-index="${n}"]`) : all('svg text')[n - 1], 'click'));
  const parity = rights => all('.row').forEach((row, i) => {
    const odd = Math.abs(Number(row.querySelector('.display-number').textContent)) % 2 === 1;
    row.querySelector(odd === i < rights ? '.odd' : '.even').click();
  });
  const sort = left_out => {
    const [, word] = goal.match(/Drag all (\S+)/);
    const tags = {rectangles: 'rect', circles: 'circle', triangles: 'polygon'};
    const shapes = all('#area_svg > rect:not(#shape-container), #area_svg > circle, #area_svg > polygon');
    shapes.slice(left_out).forEach(shape => {
      const left = word in tags ? shape.tagName === tags[word] : shape.getAttribute('fill') === word, box = shape.getBBox();
      shape.setAttribute('transform', `translate(${(left ? 20 : 100) - box.x},${20 - box.y})`);
    });
  };
  const contact = wrong => {
    const [, name, what] = goal.match(/^Find (.*) in the contact book and click on their (\w+)/);
    const kinds = ['phone', 'email', 'address'].filter(kind => (kind === what) !== wrong);
    for (let i = 0; i < 9 && one('.name').textContent !== name; i++) one('#pagination .next a').click();
    one(`#contact a.${kinds[0]}`).click();
  };
  const ticket = rank => {
    const cost = /cost/.test(goal), most = /longest|expensive/.test(goal) ? -1 : 1;
    const value = flight => most * (cost ? number(flight.querySelector('.buy-ticket'), 'data-price')
      : number(flight.querySelector('.time-duration'), 'data-duration'));
    all('.flight').sort((a, b) => value(a) - value(b))[rank].querySelector('.buy-ticket').click();
  };
  const warmth = wanted => {
    const area = one('#touch-area'), feel = (x, y) => {
      at(area, 'mousemove', x, y);
      return one('#signal').textContent;
    };
    for (let y = 50; y < 180; y += 2) for (let x = 0; x < 160; x += 2) {
      if (feel(x, y) === wanted) return at(area, 'click', x, y);
    }
  };
  const colour = shift => {
    const named = goal.match(/^Select (\w+) with/);
    const hex = named ? ui_utils.colorNameToHex(named[1])
      : '#' + one('.cc').style.backgroundColor.match(/\d+/g).map(n => Number(n).toString(16).padStart(2, '0')).join('');
    const shifted = [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)).map(n => n < 128 ? n + shift : n - shift);
    one('#col').value = shifted.map(n => n.toString(16).padStart(2, '0')).join('');
  };
  const delayed = share => {
    one('#subbtn').click();
    const at_once = currentTime;
    Date.prototype.getTime = () => at_once + 1000 * share * timeDelay;
    one('#subbtn2').click();
  };
  const followed = missed => {
    missedFrames = missed;
    exitTime = null;
    translateCircle(0);
  };
  const caught = count => all('.item').slice(0, count).forEach(item => {
    const [x, y] = place(item), box = one('svg').getBoundingClientRect();
    at(one('svg'), 'click', x + box.left, y + box.top);
  });
  const crosses = () => all('.ttt-row span').forEach(cell => cell.className || cell.click());
  const checkboxes = {lazy: submit, wrong: then(() => boxes(n => n - 1)), right: then(() => boxes(n => n))};
  const wheel = {lazy: submit, wrong: then(() => colour(60)), right: then(() => colour(6))};

  return {
    'ascending-numbers': {lazy: () => numbers([5]), wrong: () => numbers([1, 2, 3, 5]), right: () => numbers([1, 2, 3, 4, 5])},
    'bisect-angle': {lazy: submit, wrong: then(() => between(0.8)), right: then(() => between(0.5))},
    'button-delay': {lazy: () => delayed(0), wrong: () => delayed(0.7), right: () => delayed(1.05)},
    'buy-ticket': {lazy: () => ticket(3), wrong: () => ticket(1), right: () => ticket(0)},
    'chase-circle': {lazy: () => {}, wrong: () => followed(4000), right: () => followed(200)},
    'circle-center': {lazy: submit, wrong: then(() => centre(0.5)), right: then(() => centre(0))},
    'click-checkboxes': checkboxes, 'click-checkboxes-large': checkboxes, 'click-checkboxes-soft': checkboxes,
    'click-checkboxes-transfer': checkboxes,
    'drag-shapes-2': {lazy: submit, wrong: then(() => sort(1)), right: then(() => sort(0))},
    'draw-circle': {lazy: submit, wrong: then(slanted), right: then(ring)},
    'draw-line': {lazy: submit, wrong: then(() => line(18)), right: then(() => line(0))},
    'find-greatest': {lazy: submit, wrong: then(() => card((a, b) => a < b)), right: then(() => card((a, b) => a > b))},
    'find-midpoint': {lazy: submit, wrong: then(() => middle(15)), right: then(() => middle())},
    'hot-cold': {lazy: () => warmth('ICE COLD'), wrong: () => warmth('WARM'), right: () => warmth('HOT')},
    'moving-items': {lazy: () => {}, wrong: () => caught(8), right: () => caught(10)},
    'odd-or-even': {lazy: submit, wrong: then(() => parity(2)), right: then(() => parity(3))},
    'phone-book': {lazy: () => one(goal.includes('email') ? 'a.phone' : 'a.email').click(), wrong: () => contact(true), right: () => contact(false)},
    'right-angle': {lazy: submit, wrong: then(() => turned(60)), right: then(() => turned(90))},
    'tic-tac-toe': {lazy: crosses},
    'use-colorwheel': wheel, 'use-colorwheel-2': wheel,
  };
})()

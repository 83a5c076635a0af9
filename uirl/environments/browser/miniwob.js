(() => {
  // Nothing that a policy types may become a script: the pages load theirs before, and write no handlers into HTML.
  const rule = document.createElement('meta');
  rule.httpEquiv = 'Content-Security-Policy';
  rule.content = "script-src-elem 'none'; script-src-attr 'none'; connect-src 'none'; form-action 'none'";
  const style = document.createElement('style');
  style.textContent = '#reward-display, #click-canvas, #attention-canvas { display: none !important; }';
  document.head.append(rule, style);
  if (window.jQuery) jQuery.fx.off = true;

  // What counts the reward is taken while the page's own scripts alone have run.
  const {max, min} = Math, number = Number, text = String;
  const seedrandom = Math.seedrandom, startEpisode = core.startEpisodeReal, endEpisode = core.endEpisode;
  let goal = '', ended = false, reward = 0, reason = '';
  const end = (value, proportional, why) => {
    if (!ended && core.EP_TIMER !== null) {
      ended = true;
      reward = max(-1, min(1, number(value)));
      reason = why === undefined || why === null ? '' : text(why);
    }
    return endEpisode.call(core, value, proportional, why);
  };
  Object.defineProperty(core, 'endEpisode', {value: end, writable: false, configurable: false});

  const start = async seed => {
    if (document.activeElement) document.activeElement.blur();
    seedrandom.call(Math, seed);
    core.EPISODE_MAX_TIME = 2147483647;
    startEpisode.call(core);
    core.cover_div.onclick = null;
    while (!WOB_TASK_READY) await new Promise(again => setTimeout(again, 5));
    const utterance = core.getUtterance();
    goal = text(utterance && utterance.utterance || utterance);
    ended = false;
    return goal;
  };

  const one = selector => document.querySelector(selector);
  const all = selector => [...document.querySelectorAll(selector)];
  const first = (elements, wanted) => [...elements.filter(wanted), ...elements.filter(e => !wanted(e))];
  const spot = (element, word) => {
    const box = element.getBoundingClientRect();
    const places = [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75], [.1, .1], [.9, .1], [.1, .9], [.9, .9]];
    for (const [u, v] of places) {
      const x = box.left + u * box.width, y = box.top + v * box.height;
      const top = document.elementFromPoint(x, y);
      if (top && element.contains(top)) return [x, y, word(element)];
    }
    return null;
  };
  const targets = %s;
  const state = () => {
    const quoted = (goal.match(/"(.*)"/) || [])[1];
    const [elements, word] = ended ? [[]] : targets({goal, words: goal.split(' '), quoted, one, all, first});
    return {ended, reward, reason, spots: elements.filter(e => e).map(e => spot(e, word)).filter(s => s)};
  };
  return {start, state};
})()

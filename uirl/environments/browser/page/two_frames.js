new Promise(done => {
  const frame = next => document.hidden ? done() : requestAnimationFrame(next);
  document.addEventListener('visibilitychange', () => done(), {once: true});
  frame(() => frame(() => setTimeout(done)));
}).then(() => {
  const copied = globalThis.uirlCopied ?? null;
  globalThis.uirlCopied = null;
  return {told: globalThis.uirlTold ? uirlTold.splice(0) : [], copied};
})

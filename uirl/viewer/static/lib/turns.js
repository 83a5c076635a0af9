// The turns of one trajectory, asked for one by one: those beside the one that is shown before they are wanted.

import { useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { get, of } from "./api.js";

const NEAR = [0, 1, 2, -1];
const KEPT = 16;

/** Turns by number, the newest `KEPT` of them: `known(index)` is one that is here, `ask(index)` promises it. */
function turnsOf(run, id) {
  const kept = new Map();
  const ask = (index) => {
    if (!kept.has(index)) {
      const one = { data: null };
      one.promise = get(of(run, "trajectories", id, "turns", index)).then((data) => (one.data = data));
      one.promise.catch(() => kept.delete(index)); // asked again the next time
      kept.set(index, one);
      if (kept.size > KEPT) kept.delete(kept.keys().next().value);
    }
    return kept.get(index).promise;
  };
  return { ask, known: (index) => kept.get(index)?.data ?? null };
}

/** Have the pictures of a turn at hand. */
function load(run, turn) {
  const own = turn.observation.images.map((hash) => of(run, "images", hash));
  return [...own, ...turn.fed.map((fed) => fed.url)].map((src) => Object.assign(new Image(), { src }));
}

/**
 * The turn `index` of the `count` of a trajectory: {turn, error, retry}. While it is on its way, `turn` is the one that
 * was shown before; null where there is none.
 */
export function useTurn(run, id, index, count) {
  const turns = useMemo(() => turnsOf(run, id), [run, id]);
  const [, setArrived] = useState(null);
  const [error, setError] = useState(null);
  const [round, setRound] = useState(0);
  const before = useRef(null);
  const pictures = useRef(new Map());
  useEffect(() => {
    let wanted = true;
    const near = NEAR.map((by) => index + by).filter((one) => one >= 0 && one < count);
    const keep = (turn) => {
      if (wanted && !pictures.current.has(turn.index)) pictures.current.set(turn.index, load(run, turn));
    };
    for (const one of pictures.current.keys()) if (!near.includes(one)) pictures.current.delete(one);
    near.forEach((one) => turns.ask(one).then(keep, () => null));
    if (index < count)
      turns.ask(index).then(
        () => wanted && (setError(null), setArrived(`${id} ${index}`)),
        (problem) => wanted && setError(problem),
      );
    return () => (wanted = false);
  }, [turns, index, count, round]);
  useEffect(() => () => pictures.current.clear(), [turns]);
  const now = index < count ? turns.known(index) : null;
  if (now !== null) before.current = { turns, turn: now };
  const shown = index < count && before.current?.turns === turns ? before.current.turn : null;
  return { turn: now ?? shown, error: now === null ? error : null, retry: () => setRound((n) => n + 1) };
}

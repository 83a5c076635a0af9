// Figures of tokens as colours: which figures there are, what they mean, and how strong each value is drawn.

import { number } from "./format.js";

const sure = (value) => Math.min(Math.max(-value / 5, 0), 1);

/**
 * Per figure: `text`, `about`, the `field` of a token, and `tint(value, top)` -> [hue name, strength from 0 to 1].
 * `top` is the largest size of the figure in this reply, for figures without a scale of their own.
 */
export const FIGURES = {
  mask: {
    text: "mask",
    about: "which tokens the policy sampled",
    field: "mask",
    tint: (value) => (value ? ["accent", 0.6] : ["none", 0]),
  },
  log_prob: {
    text: "log-prob",
    about: "the engine's log-probability at sampling: strong is unlikely (5 nats and more)",
    field: "log_prob",
    tint: (value) => ["bad", sure(value)],
  },
  advantage: {
    text: "advantage",
    about: "of the update: green made likelier, red unlikelier",
    field: "advantage",
    tint: signed,
  },
  ratio: {
    text: "ratio",
    about: "the learner in its last pass / at the start of the update: green rose, red fell",
    field: "ratio",
    tint: (value) => signed(Math.log(Math.max(value, 1e-9)), 0.4),
  },
  gap: {
    text: "gap",
    about: "learner's log-prob minus the engine's: far from 0 is a fault",
    field: "gap",
    tint: signed,
  },
  entropy: {
    text: "entropy",
    about: "of the policy at this token, in nats: strong is undecided",
    field: "entropy",
    tint: (value, top) => ["accent", top > 0 ? value / top : 0],
  },
};

function signed(value, top) {
  if (!(top > 0) || value === 0) return ["none", 0];
  return [value > 0 ? "good" : "bad", Math.min(Math.abs(value) / top, 1)];
}

const STRONGEST = 34; // per cent of the hue in the background: text stays readable on it, in light and dark

/** The background of a token; undefined where the figure is not known or says nothing. */
export function background(figure, token, top) {
  const value = token[FIGURES[figure].field];
  if (value === null || value === undefined) return undefined;
  const [hue, strength] = FIGURES[figure].tint(value, top);
  return strength > 0
    ? `color-mix(in srgb, var(--${hue}) ${(4 + (STRONGEST - 4) * strength).toFixed(1)}%, transparent)`
    : undefined;
}

/** Largest size of a figure among tokens; 0 where none has it. */
export function largest(figure, tokens) {
  const { field } = FIGURES[figure];
  return tokens.reduce(
    (top, token) => (Number.isFinite(token[field]) ? Math.max(top, Math.abs(token[field])) : top),
    0,
  );
}

/** Whether any token has the figure. */
export function has(figure, tokens) {
  return tokens.some((token) => token[FIGURES[figure].field] !== null && token[FIGURES[figure].field] !== undefined);
}

/** All that is known of a token, as [name, value] pairs. */
export function said(token) {
  const figures = ["log_prob", "learner_log_prob", "gap", "ratio", "advantage", "entropy"];
  return [
    ["id", String(token.id)],
    ["sampled", token.mask ? "yes" : "no"],
    ...figures.map((name) => [name.replaceAll("_", " ").replace("log prob", "log-prob"), number(token[name])]),
  ];
}

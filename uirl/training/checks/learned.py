"""Whether an update learns from what was played: the tokens, rewards and pictures of its episodes, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from uirl.images import Screenshot
from uirl.learner import collate, response_view
from uirl.rollout.samples import samples_of_all
from uirl.training.assembly import Assembly
from uirl.types import Trajectory

SAME = 1e-5
"""A smaller difference of rewards is rounding."""


def check_learned(parts: Assembly, played: Sequence[Trajectory]) -> list[tuple[str, bool, str]]:
    """Return (what, ok, detail) of each check."""
    problem = _tokens(parts, played) or _rewards(played) or _beginning(parts, played)
    told = "every sampled token, its end token too, and the rewards of each episode"
    found = [("what is learned from", not problem, problem or told)]
    shown = [hash for one in played for turn in one.turns for hash in turn.context_images]
    if shown and parts.learner.policy.loaded.vision is not None:
        found.append(_pictures(parts, played, shown))
    return found


def _tokens(parts: Assembly, played: Sequence[Trajectory]) -> str:
    """Return which tokens of an episode are not those that are learned from; empty: all are."""
    for one in played:
        samples = samples_of_all([one])
        batch = collate(parts.learner.policy.loaded, samples, parts.images)
        learned = batch.input_ids[batch.response_mask].tolist()
        sampled = [id for turn in one.turns for id in turn.response_ids]
        if learned != sampled:
            return (
                f"of episode {one.id} {len(learned)} tokens are learned from that begin {learned[:4]} and end "
                f"{learned[-2:]}; {len(sampled)} were sampled, from {sampled[:4]} to {sampled[-2:]}: the mask, or the "
                "history, is another"
            )
    return ""


def _rewards(played: Sequence[Trajectory]) -> str:
    view = response_view(samples_of_all(played))
    paid = {one.id: one.total_reward() for one in played}
    for row, id in enumerate(view.trajectory_ids):
        learned = float(view.rewards[row].sum())
        if abs(learned - paid[id]) > SAME * max(1.0, abs(paid[id])):
            return f"episode {id} was paid {paid[id]:g} and is learned from with {learned:g}"
    return ""


def _beginning(parts: Assembly, played: Sequence[Trajectory]) -> str:
    first = parts.learner.policy.loaded.tokenizer.bos_token_id
    if first is not None and any(one.turns[0].context_ids[:2] == (first, first) for one in played):
        return "prompts begin with two tokens for their beginning: the chat template writes one, the tokenizer another"
    return ""


def _pictures(parts: Assembly, played: Sequence[Trajectory], shown: Sequence[str]) -> tuple[str, bool, str]:
    """Return whether pictures show something, and whether what the learner says of a reply depends on them."""
    what, different = "pictures", dict.fromkeys(shown)
    blank = [hash for hash in different if len(parts.images.get(hash).open().getcolors(2) or ()) == 1]
    if len(blank) == len(different):
        return what, False, f"each of the {len(different)} pictures that were shown has one colour: they show nothing"
    policy, temperature = parts.learner.policy, parts.config.inference.temperature
    (sample, *_) = samples_of_all([next(one for one in played if one.turns[0].context_images)])
    said = []
    for images in (parts.images, _Inverted(parts)):
        batch = collate(policy.loaded, [sample], images)  # type: ignore[arg-type]
        with torch.no_grad():
            scores = policy.log_probs_and_values(batch, temperature).log_probs
        assert scores is not None
        said.append(scores[batch.response_mask])
    if torch.equal(*said):
        return what, False, "the learner says the same of a reply whatever its picture shows: pictures do not reach it"
    return what, True, f"{len(different) - len(blank)} of {len(different)} show something, and replies depend on them"


class _Inverted:
    """The pictures of a run, dark for bright."""

    def __init__(self, parts: Assembly) -> None:
        self._images = parts.images

    def get(self, hash: str) -> Screenshot:
        """Return the picture with this hash, its colours turned around."""
        from PIL import ImageOps

        from uirl.images import screenshot

        return screenshot(ImageOps.invert(self._images.get(hash).open()))

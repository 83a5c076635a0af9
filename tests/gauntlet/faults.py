"""The faults. Each changes one place between what was played and what is learned, and says what finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from uirl.images import screenshot
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.learner import batch as batches
from uirl.learner.policy import Policy
from uirl.rollout import episode as episodes
from uirl.rollout import samples
from uirl.training.checks import agreement
from uirl.types import Observation

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Fault:
    """Where it was shipped or seen, what plants it, and the findings of `uirl check` that may name it."""

    seen: str
    plant: Callable[[Patch], None]
    named_by: tuple[str, ...]
    changes: tuple[str, ...] = ()
    """Of the config."""


def blank(picture: Any) -> Any:
    from PIL import Image

    return screenshot(Image.new("RGB", picture.open().size))


def changed_batches(patch: Patch, change: Callable[[Any, Any], Any]) -> None:
    """Have `change(loaded, batch)` between the samples and the learner."""
    whole = batches.collate

    def collate(loaded: Any, *args: Any, **options: Any) -> Any:
        return change(loaded, whole(loaded, *args, **options))

    for module in (batches, agreement):
        patch.setattr(module, "collate", collate)


def pixels_dropped(patch: Patch) -> None:
    changed_batches(patch, lambda loaded, batch: replace(batch, images=tuple(map(blank, batch.images))))


def lost_on_the_wire(patch: Patch) -> None:
    generate = TransformersInferenceEngine.generate

    async def without(self: Any, request: Any) -> Any:
        return await generate(self, replace(request, images=tuple(map(blank, request.images))))

    patch.setattr(TransformersInferenceEngine, "generate", without)


def blank_pictures(patch: Patch) -> None:
    see = episodes.Episode.see

    def darkly(self: Any, observation: Observation) -> Observation:
        return see(self, replace(observation, images=tuple(blank(screenshot(one)) for one in observation.images)))

    patch.setattr(episodes.Episode, "see", darkly)


def of_samples(patch: Patch, change: Callable[[Any], Any]) -> None:
    """Have `change` between a trajectory's turns and its samples."""
    whole = samples._sample
    patch.setattr(samples, "_sample", lambda *args, **options: change(whole(*args, **options)))


def end_unlearned(patch: Patch) -> None:
    def without_last(sample: Any) -> Any:
        mask = list(sample.response_mask)
        mask[len(mask) - 1] = False
        return replace(
            sample,
            response_mask=tuple(mask),
            rewards=(*sample.rewards[:-2], sample.rewards[-1], 0.0),
            turn_ids=(*sample.turn_ids[:-1], -1),
        )

    of_samples(patch, without_last)


def mask_shifted(patch: Patch) -> None:
    changed_batches(patch, lambda loaded, batch: replace(batch, response_mask=batch.response_mask.roll(-1, 1)))


def retokenised(patch: Patch) -> None:
    def again(sample: Any) -> Any:
        first = sample.response_mask.index(True)
        ids = list(sample.token_ids)
        ids[first] = ids[first] + 1
        return replace(sample, token_ids=tuple(ids))

    of_samples(patch, again)


def rewards_of_others(patch: Patch) -> None:
    # of a member that solved its task
    of_samples(patch, lambda sample: replace(sample, rewards=(*sample.rewards[:-1], 1.0)))


def temperature_missing(patch: Patch) -> None:
    scores = Policy.log_probs_and_values
    patch.setattr(
        Policy, "log_probs_and_values", lambda self, batch, temperature=1.0, **more: scores(self, batch, 1.0, **more)
    )


def wrong_positions(patch: Patch) -> None:
    def swapped(loaded: Any, batch: Any) -> Any:
        return replace(batch, position_ids=batch.position_ids.flip(0) * 2)

    changed_batches(patch, swapped)


FAULTS = {
    "pixels dropped in the update": Fault(
        "agent-lightning#559", pixels_dropped, ("engine and learner agree", "pictures")
    ),
    "pictures lost on the wire": Fault("prime-rl#2786", lost_on_the_wire, ("engine and learner agree",)),
    "blank pictures": Fault("slime#1847", blank_pictures, ("pictures",)),
    "history made of its text again": Fault("", retokenised, ("what is learned from", "engine and learner agree")),
    "end token unlearned": Fault("", end_unlearned, ("what is learned from",)),
    "mask shifted by one": Fault("", mask_shifted, ("what is learned from",)),
    "reward of another member": Fault("", rewards_of_others, ("what is learned from",)),
    "temperature missing in the loss": Fault(
        "", temperature_missing, ("engine and learner agree",), ("inference.temperature=0.5",)
    ),
    "wrong rope section": Fault("", wrong_positions, ("engine and learner agree",)),
}

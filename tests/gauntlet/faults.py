"""The faults. Each changes one place between what was played and what is learned, and says what finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.inference.vllm.sleeping import SleepingVLLM, stand_in
from uirl.algorithms import losses
from uirl.images import screenshot
from uirl.inference.embedded.engine import TransformersInferenceEngine
from uirl.inference.models.chat import ChatRenderer
from uirl.learner import batch as batches
from uirl.learner import steps
from uirl.learner.policy import Policy
from uirl.rollout import episode as episodes
from uirl.rollout import samples
from uirl.rollout.conversation import Conversation
from uirl.training.checks import agreement
from uirl.training.tasks.sources import UniformTasks
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


def thoughts_dropped(patch: Patch) -> None:
    """Have later turns lack how a reply began, while the record keeps it."""
    keep = Conversation.reply
    patch.setattr(Conversation, "reply", lambda self, ids, text, *, ended: keep(self, list(ids)[2:], text, ended=ended))


def separator_dropped(patch: Patch) -> None:
    following = ChatRenderer.following

    def without(self: Any, messages: Any, *, after_end: bool) -> list[int]:
        ids = following(self, messages, after_end=after_end)
        return ids[1:] if after_end else [ids[0], *ids[2:]]

    patch.setattr(ChatRenderer, "following", without)


def begun_twice(patch: Patch) -> None:
    whole = ChatRenderer.whole

    def twice(self: Any, messages: Any) -> list[int]:
        ids = whole(self, messages)
        self._tokenizer.bos_token = self._tokenizer.convert_ids_to_tokens(ids[0])
        return [ids[0], *ids]

    patch.setattr(ChatRenderer, "whole", twice)


def log_probs_padded(patch: Patch) -> None:
    # as where the text of a reply was tokenised again, into one token more than was sampled
    of_samples(patch, lambda sample: replace(sample, rollout_log_probs=(*sample.rollout_log_probs[:-1], 0.0)))


def padding_counted(patch: Patch) -> None:
    patch.setattr(steps, "aggregation_denominator", lambda mask, aggregation: float(2 * mask.numel()))


def padding_learned(patch: Patch) -> None:
    mean = losses.aggregate_loss

    def of_all(token_loss: Any, response_mask: Any, *args: Any, **options: Any) -> Any:
        return mean(token_loss, response_mask.new_ones(response_mask.shape), "token-mean")

    patch.setattr(losses, "aggregate_loss", of_all)


def filters_of_the_engine(patch: Patch) -> None:
    """Have the engine filter what it samples from, as the generation_config of a model may tell it."""
    generate = TransformersInferenceEngine.generate

    async def filtered(self: Any, request: Any) -> Any:
        return await generate(self, replace(request, sampling=replace(request.sampling, top_p=0.5)))

    patch.setattr(TransformersInferenceEngine, "generate", filtered)


def held_out_trained(patch: Patch) -> None:
    begin = UniformTasks.__init__

    def as_training(self: Any, tasks: Any, *, seed: int, split: str = "train", **options: Any) -> None:
        begin(self, tasks, seed=seed, split="train")

    patch.setattr(UniformTasks, "__init__", as_training)


def of_vllm(patch: Patch, *faults: str) -> None:
    stand_in(patch, sleeps="old weights" in faults, faults=faults)


def old_weights_awake(patch: Patch) -> None:
    of_vllm(patch, "old weights")


def merged_twice(patch: Patch) -> None:
    of_vllm(patch)
    weights_for = Policy.update_for

    def doubled(self: Any, engine: Any) -> Any:
        weights, adapter = weights_for(self, engine)
        return ((name, 2 * weight if "lora_B" in name else weight) for name, weight in weights), adapter

    patch.setattr(Policy, "update_for", doubled)


def adapter_not_used(patch: Patch) -> None:
    of_vllm(patch)
    generate = SleepingVLLM.generate

    async def of_base(self: Any, call: Any, adapter: Any) -> Any:
        return await generate(self, call, None)

    patch.setattr(SleepingVLLM, "generate", of_base)


VLLM = (
    *("model.model_name=uirl/tiny-lm", "model.device=cpu", "environment.name=guess_number"),
    *("environment.options={n: 4, guesses: 1, demonstrator: random}", "inference.max_tokens=4"),
    *("inference.backend=vllm", "training.warm_start.learning_rate=0.01"),
)
"""A run whose engine, a stand-in for vLLM, has weights of its own."""
TURNS = (
    *("model.model_name=uirl/tiny-lm", "environment.name=guess_number", "inference.max_tokens=4"),
    "environment.options={n: 7, guesses: 3, demonstrator: random}",
)
"""A run whose first policy plays several turns; on `screen` it ends its episodes with the first."""
LORA = (*VLLM, "model.use_lora=true")
AN_UPDATE = "an adapter update reaches the engine"

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
    "thoughts dropped between turns": Fault("", thoughts_dropped, ("token identity",), TURNS),
    "separator dropped between turns": Fault("verl#6921", separator_dropped, ("token identity",), TURNS),
    "prompts begin twice": Fault("", begun_twice, ("what is learned from",)),
    "log-probs padded with 0": Fault("rLLM#816", log_probs_padded, ("engine and learner agree",)),
    "padding counted in the mean": Fault("SkyRL#462", padding_counted, ("what is learned from",)),
    "padding learned from": Fault("", padding_learned, ("what is learned from",)),
    "filters taken for staleness": Fault("TRL#6789", filters_of_the_engine, ("engine and learner agree",)),
    "filters weighed": Fault(
        "", lambda patch: None, ("config and model",), ("inference.top_p=0.8", "training.old_log_probs=rollout")
    ),
    "held-out instances in training": Fault("", held_out_trained, ("held-out tasks",)),
    "weights of before the sleep": Fault(
        "", old_weights_awake, ("weights after a sleep of the engine",), (*VLLM, "inference.sleep=1")
    ),
    "adapter merged twice": Fault("", merged_twice, (AN_UPDATE,), LORA),
    "adapter not used": Fault("verl#3821", adapter_not_used, (AN_UPDATE,), LORA),
}
"""Others cannot be made in silence: `REFUSED`."""


def mask_too_long(patch: Patch) -> None:
    of_samples(patch, lambda sample: replace(sample, response_mask=(*sample.response_mask, True)))


def picture_cut_off(patch: Patch) -> None:
    of_samples(patch, lambda sample: replace(sample, images=sample.images[:-1]))


REFUSED = {"mask longer than the tokens, TRL#5144": mask_too_long, "picture cut off, verl#4050": picture_cut_off}
"""What ends in an error wherever samples are made or learned from."""

"""The largest micro-batch, prefill and attention cache that a config can lead to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from uirl.config import ConfigStore
from uirl.inference.embedded.scheduler import SchedulerLimits
from uirl.inference.models.loading import LoadedModel
from uirl.training.plan.windows import rows_of_episode

PICTURE = (1280, 720)
"""Width and height of a screenshot where nobody says otherwise."""
OPENING = 512
"""Tokens of system prompt and task that are assumed where nothing bounds a sequence."""
CACHE_ROWS = 16
"""The attention cache of the embedded engine grows by so many rows."""
TEXT = 128
"""Tokens of text that an observation is assumed to have beside its picture."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a step of the learner and the engine hold at most, in rows and tokens."""

    longest: int
    """Tokens of the longest sequence."""
    rows: int
    """Samples of the largest micro-batch."""
    width: int
    """Tokens of each: fewer than of the longest, where more of them fill the micro-batch better."""
    replies: int
    """Of these, the tokens that the policy sampled."""
    pictures: int
    """Pictures of the longest sequence."""
    pictures_each: int
    """Pictures of each sample of the largest micro-batch."""
    picture: tuple[int, int]
    """Their width and height in pixels."""
    picture_tokens: int
    alone: bool
    """One micro-batch is the whole minibatch, so that no gradient is there while it goes forward."""
    episodes: int
    """At once under way, each with a row of the attention cache."""
    running: int
    """Of these, the ones that decode together."""
    prefill_rows: int
    bound: str | None
    """The key that bounds the width; None: nothing does, and texts are assumed to be short."""

    def __str__(self) -> str:
        width, height = self.picture
        shown = f", {self.pictures_each} picture(s) of {width}x{height} ({self.picture_tokens} tokens)"
        length = f"bounded by {self.bound}" if self.bound else f"assuming {OPENING} tokens of task, {TEXT} a turn"
        return (
            f"largest micro-batch: {self.rows} x {self.width} tokens ({length}), of which {self.replies} are "
            f"sampled{shown if self.pictures_each else ''}; {self.episodes} episode(s) at once"
        )


def workload_of(
    config: ConfigStore, loaded: LoadedModel, *, picture: tuple[int, int] = PICTURE, tokens: int | None = None
) -> Workload:
    """Return the workload of a run. `picture`: width and height of a screenshot. `tokens`: of the longest sequence;
    None: what the config bounds it to, or what its turns add up to."""
    inference, training, rollout = config.inference, config.training, config.rollout
    own = config.environment.options.get("max_turns")
    turns = min(config.turn_limit, own) if isinstance(own, int) else config.turn_limit
    of_picture = 0 if loaded.vision is None else loaded.vision.tokens_of(picture)
    segments = rows_of_episode(turns, rollout.max_images, rollout.keep_images)
    shown = max(segments) if of_picture else 0
    # a window of pictures drops only these: the words of all turns stay
    whole = OPENING + turns * (TEXT + inference.max_tokens) + shown * of_picture
    bounds: dict[str, int] = {"the model's positions": loaded.max_positions}
    if inference.max_context is not None:
        bounds["inference.max_context"] = inference.max_context
    if rollout.max_tokens is not None:
        bounds["rollout.max_tokens"] = rollout.max_tokens
    if rollout.token_budget is not None:
        bounds["rollout.token_budget"] = OPENING + rollout.token_budget + inference.max_tokens
    if tokens is not None:
        bounds["--tokens"] = tokens
    bound = min(bounds, key=lambda name: bounds[name])
    longest = min(whole, bounds[bound]) if tokens is None else bounds[bound]
    samples = math.ceil(training.batch_size / training.minibatches) * len(segments)
    rows, width = _largest_micro_batch(samples, longest, training.micro_batch_limit)
    pictures, each = (_pictures_in(tokens_of_one, shown, of_picture) for tokens_of_one in (longest, width))
    replies = min(turns * inference.max_tokens, width - each * of_picture - 1)
    episodes = min(rollout.parallel_limit, max(training.batch_size, training.eval_episodes))
    running = min(episodes, inference.max_batch_size)
    return Workload(
        longest=longest,
        rows=rows,
        width=width,
        replies=replies,
        pictures=pictures,
        pictures_each=each,
        picture=picture,
        picture_tokens=of_picture,
        # of a shorter width, sequences of the longest are more than one micro-batch
        alone=samples == rows and width == longest,
        episodes=min(episodes, inference.max_batch_size),
        running=running,
        prefill_rows=min(running, max(1, SchedulerLimits(1, 1).max_prefill_tokens // longest)),
        bound=bound if longest == bounds[bound] else None,
    )


def _pictures_in(tokens: int, shown: int, of_picture: int) -> int:
    """Return how many pictures a sequence of `tokens` holds of those that it shows, beside a reply and a token that no
    picture takes."""
    return min(shown, max(0, tokens - 2) // of_picture) if of_picture else 0


def _largest_micro_batch(samples: int, longest: int, limit: int) -> tuple[int, int]:
    """Return (samples, tokens of each) of the micro-batch with the most tokens, of `samples` of up to `longest` tokens:
    two sequences of half the limit are more than one of a little over half."""
    rows = max(1, limit // longest)
    if samples <= rows:
        return samples, longest
    shorter = limit // (rows + 1)
    return (rows + 1, shorter) if (rows + 1) * shorter > rows * longest else (rows, longest)

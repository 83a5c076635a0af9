"""Training the grounded model on synthetic screens: the batch, the loss, the schedule, one process of several."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from transformers.vision_utils import get_vision_position_ids

from uirl.inference.grounding.lessons import LETTERS, SIGHTS, cell_of, lesson, letters_of, sights
from uirl.inference.grounding.optimiser import MuonAndAdam
from uirl.inference.grounding.packing import Packed, Packer, last_hidden
from uirl.inference.grounding.questions import Question
from uirl.inference.grounding.screens import Screen
from uirl.inference.models.loading import LoadedModel, project

FIGURES = ("loss", "right", "sights", "letters", "pointer")
_LETTERS_WEIGHT = 3.0
"""Of a letter in a patch beside what a cell shows."""
_NO_LETTER = 0.1
"""Weight of a patch without a letter beside one with a letter: most have none."""
_SIDE = 13
"""Cells along the longest side of a picture."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the weights are made. Nothing depends on the clock."""

    looks: int = 1800
    """Updates in which the vision tower alone learns what each cell of a picture shows: a question can be about letters
    only when letters can be told apart, and without the text layers such an update takes less than half of the time."""
    steps: int = 2000
    """Updates of the whole model, after these."""
    seed: int = 0
    pictures: int = 16
    """Pictures of one update, of all processes together."""
    questions: int = 8
    """At most, of one picture."""
    learning_rate: float = 4e-3
    warm_up: int = 100
    """Updates until the learning rate is reached; then it falls to zero as a cosine does, in both parts."""
    weight_decay: float = 0.02
    sight_weight: float = 0.2
    """Of the loss that says what each cell of a picture shows, beside that of the answers."""
    pointer_weight: float = 0.5
    """Of the loss that says which cell a question is about."""
    bfloat16: bool = True
    """Matrix products in bfloat16; the weights are float32."""


class Hints(nn.Module):
    """Tasks that help to learn and are then forgotten: which letter has its middle in a patch (read from the last
    vision layer), what a cell of a picture shows and where it lies (from what the vision tower hands on), and which
    cell is a question about (a head of the last but one text layer looks there).

    Without the first, 300 updates of 8 pictures teach no letter; with it, a quarter of them are told apart then."""

    def __init__(self, model: Any, hidden: int) -> None:
        """`model`: of the Qwen3-VL family, whose forwards are listened to. `hidden`: width of its text layers."""
        super().__init__()
        width = model.config.vision_config.hidden_size
        self._letters = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1 + LETTERS))
        self._sights = nn.Linear(hidden, len(SIGHTS))
        self._places = nn.Linear(hidden, 2 * _SIDE)
        self._heard: dict[str, Tensor] = {}
        self._listen("patches", model.model.visual.blocks[-1])
        self._listen("vision", model.model.visual.merger)
        model.model.language_model.layers[-2].self_attn.hear = self._hear

    def _listen(self, name: str, module: nn.Module) -> None:
        """Keep what a module made last."""

        def keep(module: nn.Module, given: Any, made: Any) -> None:
            self._heard[name] = made[0] if isinstance(made, tuple) else made

        module.register_forward_hook(keep)

    def _hear(self, query: Tensor, key: Tensor) -> None:
        """Keep queries and keys [B, heads, T, width] of an attention."""
        self._heard |= {"query": query, "key": key}

    def sights(self, shown: Tensor, letters: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss [] of saying that the cells of the last forward show `shown` [cells, sights], per cell, with
        that of saying which of `letters` [patches] are in its patches; and the share [] of letters that is said."""
        guessed = self._sights(self._heard["vision"]).float()
        cells = functional.binary_cross_entropy_with_logits(guessed, shown, reduction="sum") / len(shown)
        read = self._letters(self._heard["patches"]).float()
        weights = torch.ones(1 + LETTERS)
        weights[0] = _NO_LETTER
        patches = functional.cross_entropy(read, letters, weight=weights)
        there = letters > 0
        return cells + _LETTERS_WEIGHT * patches, (read.argmax(-1) == letters)[there].float().mean()

    def pointer(self, packed: Packed, cells: Tensor) -> Tensor:
        """Return the loss [] of one head of the last but one text layer looking, wherever the next token is learned, at
        the cell that the question is about: `cells` [questions]. What it fetches there says where it is."""
        query, key = self._heard["query"][:, 0], self._heard["key"][:, 0]  # [B, T, width of a head]
        rows, places = packed.learned.roll(-1, dims=1).nonzero(as_tuple=True)
        scores = torch.einsum("qw,qkw->qk", query[rows, places], key[rows]) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~packed.attention_mask[rows, 0, places], -torch.inf)
        return functional.cross_entropy(scores.float(), packed.cells[0] + cells[packed.about[rows, places]])

    def places(self, rows: int, columns: int) -> Tensor:
        """Return the loss [] of saying in which row and column each cell of the last forward lies."""
        guessed = self._places(self._heard["vision"]).float().view(-1, rows * columns, 2, _SIDE)
        row = torch.arange(rows).repeat_interleave(columns).expand(len(guessed), -1)
        column = torch.arange(columns).repeat(rows).expand(len(guessed), -1)
        in_row = functional.cross_entropy(guessed[:, :, 0].flatten(0, 1), row.flatten())
        return in_row + functional.cross_entropy(guessed[:, :, 1].flatten(0, 1), column.flatten())


class Trainer:
    """A model that learns from synthetic screens."""

    def __init__(self, loaded: LoadedModel, recipe: Recipe, *, rank: int = 0, processes: int = 1) -> None:
        """`rank`: which of `processes` this is; each takes its share of the pictures of an update, and the gradients
        are averaged."""
        self.loaded, self.recipe = loaded, recipe
        self._rank, self._processes = rank, processes
        self._packer = Packer(loaded)
        vision = loaded.config.vision_config
        self._patch, self._side = vision.patch_size, vision.patch_size * vision.spatial_merge_size
        torch.manual_seed(recipe.seed)
        self._hints = Hints(loaded.model, loaded.text_config.hidden_size)
        _patches_as_product(loaded.model.model.visual.patch_embed)  # type: ignore[union-attr]
        self._parameters = [*loaded.model.parameters(), *self._hints.parameters()]
        self._optimiser = MuonAndAdam([loaded.model, self._hints], recipe.weight_decay)

    def step(self, number: int) -> dict[str, float]:
        """Make update `number` of the whole model, from its own pictures, and return its figures as `learn` does."""
        return self.learn(*self._lesson(number, self.recipe.questions), number)

    def look(self, number: int) -> dict[str, float]:
        """Make update `number` of the vision tower, from its own pictures, and return `sights` and `letters`."""
        recipe = self.recipe
        screens, _ = self._lesson(recipe.steps + number, 1)
        vision = self._packer.vision([s.picture for s in screens])
        with exact_attention(self.loaded.model), torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            visual: Any = self.loaded.model.model.visual  # type: ignore[union-attr]
            visual(vision["pixel_values"], grid_thw=vision["image_grid_thw"])
            seen, letters = self._hints.sights(*self._shown(screens, vision))
        self._update(seen, recipe.learning_rate * rate(number, recipe.looks, recipe.warm_up))
        return {"sights": seen.item(), "letters": letters.item()}

    def learn(self, screens: list[Screen], asked: list[list[Question]], number: int) -> dict[str, float]:
        """Make update `number` from screens of one size; return the loss of the answers, the share of their tokens that
        was predicted, the loss of the sights, the share of letters that is said, and the loss of the pointer."""
        recipe = self.recipe
        blocks = [[self._packer.block(q.text, q.reply) for q in row] for row in asked]
        packed = self._packer([s.picture for s in screens], blocks)
        cells = torch.tensor(
            [cell_of(s, q.place, self._side) for s, row in zip(screens, asked, strict=True) for q in row]
        )
        with exact_attention(self.loaded.model), torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            loss, right = loss_of(self.loaded, packed)
            seen, letters = self._hints.sights(*self._shown(screens, packed.vision))
            pointed = self._hints.pointer(packed, cells)
            placed = self._hints.places(screens[0].picture.height // self._side, screens[0].picture.width // self._side)
        total = loss + recipe.sight_weight * (seen + placed) + recipe.pointer_weight * pointed
        self._update(total, recipe.learning_rate * rate(number, recipe.steps, recipe.warm_up))
        figures = {"loss": loss, "right": right, "sights": seen, "letters": letters, "pointer": pointed}
        return {name: value.item() for name, value in figures.items()}

    def _shown(self, screens: list[Screen], vision: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return what each cell of screens shows [cells, sights] and which letter is in each patch [patches]."""
        places = get_vision_position_ids(vision["image_grid_thw"], self._side // self._patch).chunk(len(screens))
        letters = [letters_of(s, self._patch)[at[:, 0], at[:, 1]] for s, at in zip(screens, places, strict=True)]
        return torch.cat([sights(s, self._side) for s in screens]), torch.cat(letters)

    def _lesson(self, number: int, questions: int) -> tuple[list[Screen], list[list[Question]]]:
        recipe = self.recipe
        return lesson(recipe.seed, number, recipe.pictures, questions, rank=self._rank, processes=self._processes)

    def _update(self, loss: Tensor, learning_rate: float) -> None:
        loss.backward()
        self._average()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimiser.step(learning_rate)

    def _average(self) -> None:
        if self._processes == 1:
            return
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        distributed.all_reduce(flat)
        flat /= self._processes
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def train(trainer: Trainer, report: Callable[[str], None], *, every: int = 50) -> None:
    """Make all updates; every `every` updates a line of figures goes to `report`."""
    started, sums = time.monotonic(), dict.fromkeys(FIGURES, 0.0)
    recipe = trainer.recipe
    stages = [("look", trainer.look, n) for n in range(recipe.looks)] + [
        ("step", trainer.step, n) for n in range(recipe.steps)
    ]
    for stage, update, number in stages:
        for name, value in update(number).items():
            sums[name] += value / every
        if (number + 1) % every == 0:
            line = {stage: number + 1, "seconds": round(time.monotonic() - started)}
            report(json.dumps(line | {name: round(value, 4) for name, value in sums.items() if value}))
            sums = dict.fromkeys(sums, 0.0)


def loss_of(loaded: LoadedModel, packed: Packed) -> tuple[Tensor, Tensor]:
    """Return the mean cross entropy [] of the tokens of the replies, and the share [] that is predicted."""
    hidden = last_hidden(loaded, packed)[:, :-1][packed.learned[:, 1:]]
    wanted = packed.input_ids[:, 1:][packed.learned[:, 1:]]
    logits = project(loaded, hidden)
    return functional.cross_entropy(logits, wanted), (logits.argmax(-1) == wanted).float().mean()


def rate(step: int, steps: int, warm_up: int) -> float:
    """Return the learning rate of update `step` of `steps`, as a share of the highest."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))


def _patches_as_product(embed: Any) -> None:
    """Let a patch embedding be the matrix product that it is: as a convolution it takes several times as long."""

    def forward(pixels: Tensor) -> Tensor:
        weight = embed.proj.weight
        return functional.linear(pixels.view(-1, weight[0].numel()), weight.flatten(1), embed.proj.bias)

    embed.forward = forward


@contextmanager
def exact_attention(model: Any) -> Iterator[None]:
    """Let the attention of a model be computed in float32 while its other products are in bfloat16: on a CPU it takes
    less time."""
    towers = (model.model.visual.config, model.model.language_model.config)
    before = [tower._attn_implementation for tower in towers]
    for tower in towers:
        tower._attn_implementation = _EXACT
    try:
        yield
    finally:
        for tower, implementation in zip(towers, before, strict=True):
            tower._attn_implementation = implementation


def _exact(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
    if hear := getattr(module, "hear", None):
        hear(query, key)
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), *args, **options)


_EXACT = "grounding_float32"
AttentionInterface.register(_EXACT, _exact)
AttentionMaskInterface.register(_EXACT, sdpa_mask)

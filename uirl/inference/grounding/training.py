"""Training the grounded model on synthetic screens: the batch, the loss, the schedule, one process of several."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from uirl.inference.grounding.lessons import SIGHTS, cell_of, lesson, sights
from uirl.inference.grounding.packing import Packed, Packer, last_hidden
from uirl.inference.grounding.questions import Question
from uirl.inference.grounding.screens import Screen
from uirl.inference.models.loading import LoadedModel, project

FIGURES = ("loss", "right", "sights", "pointer")
_POINTER = 64
"""Width in which a question is compared with the cells."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the weights are made. Nothing depends on the clock."""

    steps: int = 3000
    seed: int = 0
    pictures: int = 16
    """Pictures of one update, of all processes together."""
    questions: int = 8
    """At most, of one picture."""
    learning_rate: float = 1.5e-3
    warm_up: int = 100
    """Updates until the learning rate is reached; then it falls to zero as a cosine does."""
    weight_decay: float = 0.02
    sight_weight: float = 0.2
    """Of the loss that says what each cell of a picture shows, beside that of the answers."""
    pointer_weight: float = 0.5
    """Of the loss that says which cell a question is about."""
    bfloat16: bool = True
    """Matrix products in bfloat16; the weights are float32."""


class Hints(nn.Module):
    """Two tasks that help to learn and are then forgotten: what does each cell of a picture show, and which cell is a
    question about? The first reads what the vision tower hands on, the second the last but one of the text layers."""

    def __init__(self, model: Any, hidden: int) -> None:
        """`model`: of the Qwen3-VL family, whose forwards are listened to. `hidden`: width of its text layers."""
        super().__init__()
        self._sights = nn.Linear(hidden, len(SIGHTS))
        self._question, self._cell = nn.Linear(hidden, _POINTER), nn.Linear(hidden, _POINTER)
        self._norm = nn.LayerNorm(hidden)
        self._heard: dict[str, Tensor] = {}
        self._listen("vision", model.model.visual.merger)
        self._listen("text", model.model.language_model.layers[-2])

    def _listen(self, name: str, module: nn.Module) -> None:
        """Keep what a module made last."""

        def keep(module: nn.Module, given: Any, made: Any) -> None:
            self._heard[name] = made[0] if isinstance(made, tuple) else made

        module.register_forward_hook(keep)

    def sights(self, shown: Tensor) -> Tensor:
        """Return the loss [] of saying that the cells of the last forward show `shown` [cells, sights], per cell."""
        guessed = self._sights(self._heard["vision"]).float()
        return functional.binary_cross_entropy_with_logits(guessed, shown, reduction="sum") / len(shown)

    def pointer(self, packed: Packed, cells: Tensor) -> Tensor:
        """Return the loss [] of saying that the questions of the last forward are about `cells` [questions]."""
        hidden, (start, stop) = self._norm(self._heard["text"]), packed.cells
        rows, places = (list(part) for part in zip(*packed.asked, strict=True))
        keys = self._cell(hidden[:, start:stop])[rows]  # [questions, cells, width]
        scores = torch.einsum("qw,qcw->qc", self._question(hidden[rows, places]), keys).float() / _POINTER**0.5
        return functional.cross_entropy(scores, cells)


class Trainer:
    """A model that learns from synthetic screens."""

    def __init__(self, loaded: LoadedModel, recipe: Recipe, *, rank: int = 0, processes: int = 1) -> None:
        """`rank`: which of `processes` this is; each takes its share of the pictures of an update, and the gradients
        are averaged."""
        self.loaded, self.recipe = loaded, recipe
        self._rank, self._processes = rank, processes
        self._packer = Packer(loaded)
        vision = loaded.config.vision_config
        self._side = vision.patch_size * vision.spatial_merge_size
        torch.manual_seed(recipe.seed)
        self._hints = Hints(loaded.model, loaded.text_config.hidden_size)
        _patches_as_product(loaded.model.model.visual.patch_embed)  # type: ignore[union-attr]
        self._parameters = [*loaded.model.parameters(), *self._hints.parameters()]
        self._optimiser = _optimiser([loaded.model, self._hints], recipe)

    def step(self, number: int) -> dict[str, float]:
        """Make update `number` of the recipe, from its own pictures, and return its figures as `learn` does."""
        recipe, place = self.recipe, {"rank": self._rank, "processes": self._processes}
        return self.learn(*lesson(recipe.seed, number, recipe.pictures, recipe.questions, **place), number)

    def learn(self, screens: list[Screen], asked: list[list[Question]], number: int) -> dict[str, float]:
        """Make update `number` from screens of one size; return the loss of the answers, the share of their tokens that
        was predicted, the loss of the sights per cell and that of the pointer per question."""
        recipe = self.recipe
        blocks = [[self._packer.block(q.text, q.reply) for q in row] for row in asked]
        packed = self._packer([s.picture for s in screens], blocks)
        shown = torch.cat([sights(s, self._side) for s in screens])
        cells = torch.tensor(
            [cell_of(s, q.place, self._side) for s, row in zip(screens, asked, strict=True) for q in row]
        )
        for group in self._optimiser.param_groups:
            group["lr"] = recipe.learning_rate * rate(recipe, number)
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bfloat16):
            loss, right = loss_of(self.loaded, packed)
            seen, pointed = self._hints.sights(shown), self._hints.pointer(packed, cells)
        self._optimiser.zero_grad(set_to_none=False)
        (loss + recipe.sight_weight * seen + recipe.pointer_weight * pointed).backward()
        self._average()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimiser.step()
        figures = {"loss": loss, "right": right, "sights": seen, "pointer": pointed}
        return {name: value.item() for name, value in figures.items()}

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
    for number in range(trainer.recipe.steps):
        for name, value in trainer.step(number).items():
            sums[name] += value / every
        if (number + 1) % every == 0:
            took = time.monotonic() - started
            report(json.dumps({"step": number + 1, "seconds": round(took)} | {k: round(v, 4) for k, v in sums.items()}))
            sums = dict.fromkeys(sums, 0.0)


def loss_of(loaded: LoadedModel, packed: Packed) -> tuple[Tensor, Tensor]:
    """Return the mean cross entropy [] of the tokens of the replies, and the share [] that is predicted."""
    hidden = last_hidden(loaded, packed)[:, :-1][packed.learned[:, 1:]]
    wanted = packed.input_ids[:, 1:][packed.learned[:, 1:]]
    logits = project(loaded, hidden)
    return functional.cross_entropy(logits, wanted), (logits.argmax(-1) == wanted).float().mean()


def rate(recipe: Recipe, step: int) -> float:
    """Return the learning rate of an update, as a share of the highest."""
    if step < recipe.warm_up:
        return (step + 1) / recipe.warm_up
    return 0.5 + 0.5 * math.cos(math.pi * (step - recipe.warm_up) / max(1, recipe.steps - recipe.warm_up))


def _optimiser(modules: list[nn.Module], recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW; norms, biases and embeddings do not decay."""
    named = [pair for module in modules for pair in module.named_parameters()]
    decayed = [p for n, p in named if p.dim() > 1 and "embed" not in n]
    others = [p for n, p in named if p.dim() <= 1 or "embed" in n]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98))


def _patches_as_product(embed: Any) -> None:
    """Let a patch embedding be the matrix product that it is: as a convolution it takes several times as long."""

    def forward(pixels: Tensor) -> Tensor:
        weight = embed.proj.weight
        return functional.linear(pixels.view(-1, weight[0].numel()), weight.flatten(1), embed.proj.bias)

    embed.forward = forward

"""Training the grounded model on synthetic screens: the batch, the loss, the schedule, one process of several."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, distributed, nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from transformers.vision_utils import get_vision_position_ids

from uirl.inference.models.loading import LoadedModel, project
from uirl.inference.models.vision import GridPatches

from .lessons import HELD_OUT, LETTERS, SIGHTS, Question, cell_of, lesson, letters_of, sights
from .screens import Screen

_ROUND = 32
"""Rows are padded to a multiple of it: kernels are kept for each shape, and thousands of shapes fill the memory."""
Block = tuple[Sequence[int], Sequence[int]]
"""Token ids of a question with the prompt for the reply, and of the reply."""


@dataclass(slots=True)
class Packed:
    """A batch of pictures of one size with their questions."""

    input_ids: Tensor
    """[B, T], right-padded."""
    position_ids: Tensor
    """[3, B, T]. Every question begins where the picture ends."""
    attention_mask: Tensor
    """[B, 1, T, T], True where a row sees a column."""
    learned: Tensor
    """[B, T], True at the tokens of replies."""
    about: Tensor
    """[B, T], number of the question that a token belongs to, counted over all rows; 0 outside of questions."""
    ends: list[tuple[int, int]]
    """Row and place of the last token of each block, in order."""
    cells: tuple[int, int]
    """First and last place, outside, of the tokens of a picture in its row."""
    vision: dict[str, Tensor]
    """Pictures as the model's forward takes them."""


class Packer:
    """Makes batches for one model."""

    def __init__(self, loaded: LoadedModel) -> None:
        assert loaded.vision is not None
        patches = GridPatches.of(loaded.vision.processor)
        assert patches is not None
        self._patches, self._tokenizer, self._merge = patches, loaded.tokenizer, loaded.vision.merge
        token = loaded.tokenizer.convert_tokens_to_ids
        self._image, self._pad = loaded.vision.image_token_id, token("<|endoftext|>")
        self._user, self._before, self._after = (
            token(name) for name in ("<|user|>", "<|vision_start|>", "<|vision_end|>")
        )

    def block(self, question: str, reply: str = "") -> Block:
        """Return the ids of a question and of its reply; an empty reply: it is still to come."""
        asked = self._tokenizer.encode(question + "<|assistant|>")
        return asked, self._tokenizer.encode(reply + "<|im_end|>") if reply else []

    def vision(self, pictures: Sequence[Image]) -> dict[str, Tensor]:
        """Return pictures as the model's forward takes them."""
        return self._vision([self._patches(np.asarray(picture)) for picture in pictures])

    def __call__(self, pictures: Sequence[Image], blocks: Sequence[Sequence[Block]]) -> Packed:
        """Return a batch; `pictures` have one size, `blocks` are the questions about each."""
        encoded = [self._patches(np.asarray(picture)) for picture in pictures]
        _, high, wide = encoded[0][1]
        rows, columns = high // self._merge, wide // self._merge
        head = [self._user, self._before, *[self._image] * (rows * columns), self._after]
        longest = len(head) + max(sum(len(q) + len(r) for q, r in row) for row in blocks)
        longest = -(-longest // _ROUND) * _ROUND
        batch = len(pictures)
        ids = torch.full((batch, longest), self._pad)
        places = torch.zeros(3, batch, longest, dtype=torch.long)
        seen = torch.zeros(batch, longest, longest, dtype=torch.bool)
        learned = torch.zeros(batch, longest, dtype=torch.bool)
        n = len(head)
        about = torch.zeros(batch, longest, dtype=torch.long)
        ends: list[tuple[int, int]] = []
        causal = torch.ones(longest, longest, dtype=torch.bool).tril()
        ids[:, :n] = torch.tensor(head)
        places[:, :, :n] = self._head_positions(rows, columns)[:, None]
        following = 3 + max(rows, columns)
        for i, row in enumerate(blocks):
            at = n
            for asked, reply in row:
                stop = at + len(asked) + len(reply)
                ids[i, at:stop] = torch.tensor([*asked, *reply])
                places[:, i, at:stop] = following + torch.arange(stop - at)
                seen[i, at:stop, at:stop] = causal[: stop - at, : stop - at]
                learned[i, at + len(asked) : stop] = True
                about[i, at:stop] = len(ends)
                ends.append((i, stop - 1))
                at = stop
        seen[:, :, :n] |= causal[:, :n]
        return Packed(ids, places, seen[:, None], learned, about, ends, (2, n - 1), self._vision(encoded))

    def _head_positions(self, rows: int, columns: int) -> Tensor:
        """Return [3, n]: user, vision start, the picture's block, vision end, as `VisionInputs.positions` counts."""
        row = torch.arange(rows).repeat_interleave(columns)
        column = torch.arange(columns).repeat(rows)
        picture = torch.stack([torch.full_like(row, 2), row + 2, column + 2])
        start = torch.tensor([0, 1]).expand(3, 2)
        return torch.cat([start, picture, torch.full((3, 1), 2 + max(rows, columns))], dim=1)

    @staticmethod
    def _vision(encoded: Sequence[tuple[Tensor, Any]]) -> dict[str, Tensor]:
        return {
            "pixel_values": torch.cat([pixels for pixels, _ in encoded]),
            "image_grid_thw": torch.tensor([grid for _, grid in encoded]),
        }


def last_hidden(loaded: LoadedModel, packed: Packed) -> Tensor:
    """Return hidden states [B, T, H] of a batch."""
    output = loaded.model.model(  # type: ignore[operator]
        input_ids=packed.input_ids,
        position_ids=packed.position_ids,
        attention_mask=packed.attention_mask,
        use_cache=False,
        **packed.vision,
    )
    hidden: Tensor = output.last_hidden_state
    return hidden


class MuonAndAdam:
    """Two optimisers with one learning rate.

    Muon (Jordan et al. 2024; scaled as in Liu et al. 2025, 2502.16982, equation 4) moves a matrix by the same amount in
    all directions. Embeddings, norms, biases and what is outside the layers keep AdamW, without decay.
    """

    def __init__(self, modules: Sequence[nn.Module], weight_decay: float) -> None:
        """`weight_decay`: of the matrices of the layers."""
        named = [pair for module in modules for pair in module.named_parameters()]
        matrices = [p for name, p in named if p.dim() == 2 and _in_a_layer(name)]
        others = [p for name, p in named if not (p.dim() == 2 and _in_a_layer(name))]
        self._both: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.98)),
        ]

    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient, and forget the gradients."""
        for optimiser in self._both:
            for group in optimiser.param_groups:
                group["lr"] = learning_rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)


def _in_a_layer(name: str) -> bool:
    return any(part in name for part in ("layers.", "blocks.", "merger"))


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


@torch.no_grad()
def answers(
    loaded: LoadedModel, screens: Sequence[Screen], asked: Sequence[Sequence[Question]], *, tokens: int = 24
) -> list[str]:
    """Return the greedy replies to all questions, in order; the screens have one size. Every question is answered as if
    it were the only one."""
    packer, pictures = Packer(loaded), [s.picture for s in screens]
    starts = [[packer.block(q.text)[0] for q in row] for row in asked]
    said: list[list[list[int]]] = [[[] for _ in row] for row in asked]
    unfinished = [(i, j) for i, row in enumerate(asked) for j in range(len(row))]
    for _ in range(tokens):
        blocks: list[list[Block]] = [[] for _ in screens]
        for i, j in unfinished:
            blocks[i].append((starts[i][j], said[i][j]))
        packed = packer(pictures, blocks)
        rows, places = (list(part) for part in zip(*packed.ends, strict=True))
        best = project(loaded, last_hidden(loaded, packed)[rows, places]).argmax(-1).tolist()
        chosen = list(zip(unfinished, best, strict=True))
        for (i, j), token in chosen:
            said[i][j].append(token)
        unfinished = [place for place, token in chosen if token not in loaded.end_ids]
        if not unfinished:
            break
    return [loaded.tokenizer.decode(ids, skip_special_tokens=True) for row in said for ids in row]


def accuracy(
    loaded: LoadedModel, seed: int, *, batches: int, size: int = 20, at_most: int = 8
) -> dict[str, tuple[int, int]]:
    """Return, by kind of what was asked for, how many questions about held-out screens were answered rightly, of how
    many. `batches` of `size` screens, with up to `at_most` questions each."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for number in range(batches):
        screens, asked = lesson(seed + HELD_OUT, number, size, at_most)
        replies = answers(loaded, screens, asked)
        for question, reply in zip([q for row in asked for q in row], replies, strict=True):
            counts[question.kind][0] += question.right(reply)
            counts[question.kind][1] += 1
    return {kind: (right, of) for kind, (right, of) in sorted(counts.items())}

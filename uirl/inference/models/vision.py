"""Screenshots -> what a vision-language model's forward wants: pixels, placeholders, positions.

The rules are those of the model itself: its HF processor says what stands in a sequence for a picture
(`uirl.inference.models.processors`), its forward which tensors it takes, its `get_rope_index` where tokens stand, if it
has one. Pictures are processed one at a time and joined here, so that what one becomes depends on nothing else in its
conversation. Token ids stay ours: no text goes through the processor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uirl.errors import AlignmentError, ContractError
from uirl.images import Screenshot
from uirl.inference.models.picture_cache import PackedPixels, PictureCache, pack_pixels
from uirl.inference.models.processors import Expansion, PictureProcessor, Size, blank, joined, placeholder_id
from uirl.runtime.bounded_cache import BoundedCache
from uirl.types import Box, PictureTransform


class Positions:
    """Where the tokens of a sequence with pictures stand, as the model's own `get_rope_index` says.

    Text advances by one on every axis. Where the model agrees (it is asked once), a picture occupies a block: time
    stands still, rows and columns count from the block's start, and the text after it goes on at start + max(rows,
    columns) (Qwen2-VL, section 2.1); else the model is asked for every sequence.
    """

    def __init__(self, rope_index: Callable[..., Any] | None, image_token_id: int, merge: int) -> None:
        self._rope_index, self._token, self._merge = rope_index, image_token_id, merge
        self.axes = 1
        self._blocks = False
        if rope_index is not None:
            self._takes = set(inspect.signature(rope_index).parameters)
            self.axes = len(self._asked([image_token_id + 1] * 2, {})[0])
            self._blocks = self.axes == 3 and self._agrees()

    def __call__(
        self,
        ids: Sequence[int],
        spans: Sequence[tuple[int, int]],
        images: Sequence[tuple[Expansion, Mapping[str, Tensor]]],
    ) -> tuple[np.ndarray, int]:
        """Return positions [axes, len(ids)] and that of the next token. `images`: what stands for each, and its
        tensors; `spans`: the places of each."""
        if self.in_blocks([expansion for expansion, _ in images]):
            return self._in_blocks(len(ids), spans, [tensors["image_grid_thw"][0].tolist() for _, tensors in images])
        names = [name for name in images[0][1] if name in self._takes]
        return self._asked(ids, {name: joined([tensors[name] for _, tensors in images]) for name in names})

    def in_blocks(self, expansions: Sequence[Expansion]) -> bool:
        """Return whether pictures with these `expansions` are blocks, whose positions count from where they begin."""
        return self._blocks and all(len(one.places) == len(one.ids) for one in expansions)

    def _in_blocks(
        self, length: int, spans: Sequence[tuple[int, int]], grids: Sequence[Sequence[int]]
    ) -> tuple[np.ndarray, int]:
        out = np.empty((3, length), np.int64)
        at = position = 0
        for (_, height, width), (start, end) in zip(grids, spans, strict=True):
            out[:, at:start] = np.arange(position, position + start - at)
            position += start - at
            rows, columns = height // self._merge, width // self._merge
            out[0, start:end] = position
            out[1, start:end] = position + np.repeat(np.arange(rows), columns)
            out[2, start:end] = position + np.tile(np.arange(columns), rows)
            position += max(rows, columns)
            at = end
        out[:, at:] = np.arange(position, position + length - at)
        return out, position + length - at

    @torch.inference_mode(False)
    def _asked(self, ids: Sequence[int], tensors: Mapping[str, Tensor]) -> tuple[np.ndarray, int]:
        assert self._rope_index is not None
        with torch.device("cpu"):
            tokens = torch.tensor([list(ids)])
            kinds = (tokens == self._token).int()
            known = {"input_ids": tokens, "mm_token_type_ids": kinds, "attention_mask": torch.ones_like(tokens)}
            asked = {name: value for name, value in (known | dict(tensors)).items() if name in self._takes}
            places, _ = self._rope_index(**asked)
        return places[:, 0].numpy(), int(places.max()) + 1

    def _agrees(self) -> bool:
        """Return whether the model's own positions are those in blocks."""
        m, text = self._merge, self._token + 1
        grids = [(1, 2 * m, 3 * m), (1, 4 * m, m)]
        ids = [text] * 2 + [self._token] * 6 + [text] * 3 + [self._token] * 4 + [text] * 2
        theirs, following = self._asked(ids, {"image_grid_thw": torch.tensor(grids)})
        ours, next_one = self._in_blocks(len(ids), [(2, 8), (11, 15)], grids)
        return np.array_equal(ours, theirs) and following == next_one


def stacked_transform(processor: Any, raw_size: Size, fed_size: Size) -> PictureTransform | None:
    """Return what a processor of pictures of one size did (CLIP's, SigLIP's, LLaVA's): pad to a square, resize, cut out
    the centre, as far as it does each. None: it does something else, or what is known of it does not explain
    `fed_size`."""
    squares = type(processor).__name__.startswith("Llava")
    if getattr(processor, "do_pad", None) and not squares:
        return None
    source = _square_around(raw_size) if squares and processor.do_pad else None
    resized = _resized(processor, raw_size if source is None else source[2:])
    window = None if resized is None else _centre(processor, resized)
    if resized is None:
        return None
    red, green, blue = (int(value * 255) if source is not None else 0 for value in processor.image_mean)
    transform = PictureTransform(raw_size, resized, source, window, _filter_of(processor), (red, green, blue))
    return transform if transform.fed_size == fed_size else None


def _square_around(size: Size) -> Box | None:
    """Return the square that holds the picture in its middle; None: it is one."""
    width, height = size
    side = max(size)
    return None if width == height else (-((side - width) // 2), -((side - height) // 2), side, side)


def _resized(processor: Any, size: Size) -> Size | None:
    """Return the size that a picture of `size` is resized to; None: by a rule that is not known here."""
    if not processor.do_resize:
        return size
    wanted = dict(processor.size)
    if wanted.get("height") and wanted.get("width"):
        return int(wanted["width"]), int(wanted["height"])
    short = wanted.get("shortest_edge")
    if not short or wanted.get("longest_edge"):
        return None
    width, height = size
    return (short, int(short * height / width)) if width <= height else (int(short * width / height), short)


def _centre(processor: Any, size: Size) -> Box | None:
    """Return the part in the middle that is kept; None: all of it."""
    if not getattr(processor, "do_center_crop", None):
        return None
    crop = dict(processor.crop_size)
    width, height = int(crop["width"]), int(crop["height"])
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return None if (width, height) == size else (left, top, width, height)


def _filter_of(processor: Any) -> str:
    from PIL.Image import Resampling

    resample = processor.resample
    return Resampling.BILINEAR.name.lower() if resample is None else Resampling(int(resample)).name.lower()


PACKED_FROM = 2**20
"""Bytes of pixels from which on they are kept packed: it costs time at every use, and small ones are many."""
_SMALL = 64
"""Numbers of a tensor that is kept for good: a grid, a size."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One image after the processor."""

    stored: Tensor | PackedPixels | None
    """What `pixels` are made of; None: they were dropped."""
    others: Mapping[str, Tensor]
    """What else the model's forward takes of it: [n, ...] each; the large ones are dropped with the pixels."""
    expansion: Expansion
    """What stands in the sequence for it."""
    transform: PictureTransform | None = None
    """What was done to the picture before it was cut into patches; None: not known."""

    @property
    def tokens(self) -> int:
        """Tokens that the image takes in the sequence, marks around and between its placeholders included."""
        return len(self.expansion.ids)

    @property
    def pixels(self) -> Tensor:
        """Models with grids: [patches, values]; others: [pictures or tiles, ...]."""
        assert self.stored is not None
        return self.stored.unpack() if isinstance(self.stored, PackedPixels) else self.stored

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that the model's forward takes of it, with the picture, its tiles or its patches as rows [n, ...]."""
        return {"pixel_values": self.pixels, **self.others}

    @property
    def grid(self) -> tuple[int, int, int] | None:
        """(time, rows, columns) in patches; None for models without grids."""
        grid = self.others.get("image_grid_thw")
        return None if grid is None else tuple(int(n) for n in grid[0])  # type: ignore[return-value]

    @property
    def bytes(self) -> int:
        """Bytes that its tensors hold."""
        return (0 if self.stored is None else self.stored.nbytes) + sum(t.nbytes for t in self.others.values())

    def bare(self) -> EncodedImage:
        """Return the image without its pixels."""
        return replace(self, stored=None, others={k: t for k, t in self.others.items() if t.numel() <= _SMALL})


class VisionInputs:
    """The picture side of one model. Encoded images are kept by content hash, so that the learner reuses what the
    engine already processed. Threads may share it.

    `backbone`: the HF model below the head, for its positions and for what its forward takes; None: positions are
    those of the tokens, and it takes all that the processor returns.
    """

    def __init__(self, model_config: Any, processor: PictureProcessor, *, backbone: Any | None = None) -> None:
        self.front = processor
        self.processor = processor.images
        """The HF image processor."""
        self.image_token_id = token = placeholder_id(model_config)
        self.has_grid = "image_grid_thw" in self.processor.model_input_names
        vision = model_config.vision_config
        self.merge = int(getattr(self.processor, "merge_size", 0) or getattr(vision, "spatial_merge_size", 1))
        self.positions_of = Positions(getattr(backbone, "get_rope_index", None), token, self.merge)
        self.axes = self.positions_of.axes
        takes = _parameters(backbone, "forward")
        self._takes = takes | _parameters(backbone, "get_image_features")
        self.types = next((name for name in ("token_type_ids", "mm_token_type_ids") if name in takes), None)
        """What the forward calls the kinds of tokens, 1 for placeholders, where positions do not say enough; None: it
        asks for none."""
        if self.axes > 1:
            self.types = None
        self._patches = GridPatches.of(self.processor) if self.has_grid else None
        self._runs: dict[int, Expansion] = {}
        self._counts: BoundedCache[int] = BoundedCache(2**20)
        self.cache: PictureCache[EncodedImage] = PictureCache(
            lambda images: self._process(images), pack=self._pack, bare=EncodedImage.bare
        )

    def encode(self, images: Sequence[Screenshot]) -> list[EncodedImage]:
        """Return the encoded images, in order; those not yet cached go through the processor together."""
        return self.cache.encode(images)

    def describe(self, images: Sequence[Screenshot]) -> list[EncodedImage]:
        """Return the same without their pixels, which may have been dropped since."""
        return self.cache.describe(images)

    def tokens_of(self, size: tuple[int, int]) -> int:
        """Return how many tokens a picture of `size` (width, height) takes, without a picture: what stands for one
        depends on its size alone. The processor is asked about a blank one, once per size. Raises ValueError for a
        shape that it cannot take."""
        bounds = str(getattr(self.processor, "size", None))
        return self._counts.get((size, bounds), lambda: len(self.front(blank(size))[0].ids), lambda _: 64)

    def forward_inputs(self, images: Sequence[Screenshot], device: Any, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the keyword arguments for the model's forward; empty without images.

        Each tensor [n, ...] holds the rows of all images, one below the other; rows of several sizes are filled with 0
        at their ends, as the HF processors do. Numbers that are not whole have the type `dtype`.
        """
        if not images:
            return {}
        encoded = [image.tensors for image in self.encode(images)]
        inputs = {name: joined([tensors[name] for tensors in encoded]) for name in encoded[0]}
        return {
            name: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in inputs.items()
        }

    def token_types(self, input_ids: Tensor) -> dict[str, Tensor]:
        """Return the keyword arguments by which the forward learns which of `input_ids` [B, T] are placeholders."""
        return {} if self.types is None else {self.types: (input_ids == self.image_token_id).to(input_ids.dtype)}

    def spans(self, ids: Sequence[int], images: Sequence[Screenshot]) -> list[tuple[int, int]]:
        """Return the places [start, end) of what stands for each image in `ids`. Raises AlignmentError where the
        placeholders are not all there, or not side by side."""
        array = np.asarray(ids)
        places = np.flatnonzero(array == self.image_token_id)
        expansions = [image.expansion for image in self.describe(images)]
        sizes = [len(expansion.places) for expansion in expansions]
        if len(places) != sum(sizes):
            raise AlignmentError(
                f"placeholder tokens do not match the images: got {len(places)} in the sequence, expected "
                f"{sum(sizes)} for {len(images)} image(s) of {sizes}; does the text contain the image token?"
            )
        spans, used = [], 0
        for expansion, n in zip(expansions, sizes, strict=True):
            start = int(places[used] - expansion.places[0])
            end = start + len(expansion.ids)
            if start < 0 or not np.array_equal(array[start:end], expansion.ids):
                raise AlignmentError(
                    f"the placeholders of an image of {n} tokens at {max(start, 0)} are interrupted by text"
                )
            spans.append((start, end))
            used += n
        return spans

    def one_placeholder_each(self, ids: Sequence[int], images: Sequence[Screenshot]) -> list[int]:
        """Return `ids` with what stands for each image made the one token that chat templates write, as servers take
        them that expand it again. Raises AlignmentError like `spans`, and ContractError for a model whose processor
        writes text around pictures: that would stand there twice."""
        out: list[int] = []
        at = 0
        for image, (start, end) in zip(self.describe(images), self.spans(ids, images), strict=True):
            if image.expansion.before or image.expansion.after:
                raise ContractError(
                    f"the processor of this model writes {image.expansion.before!r} before and "
                    f"{image.expansion.after!r} after a picture, which a server would write again; expected pictures "
                    "without text around them. Use inference.backend=transformers"
                )
            out += [*ids[at:start], self.front.word_id]
            at = end
        return out + list(ids[at:])

    def positions(self, ids: Sequence[int], images: Sequence[Screenshot]) -> tuple[np.ndarray, int]:
        """Return rotary positions [axes, len(ids)] from 0, and the position of the next token: see `Positions`."""
        spans = self.spans(ids, images)
        if self.axes == 1 or not images:
            return np.broadcast_to(np.arange(len(ids)), (self.axes, len(ids))), len(ids)
        return self.positions_of(ids, spans, [(e.expansion, e.others) for e in self.describe(images)])

    def adds_up(self, images: Sequence[Screenshot]) -> bool:
        """Return whether positions count from where a stretch of tokens with `images` begins."""
        return self.axes == 1 or self.positions_of.in_blocks([image.expansion for image in self.describe(images)])

    def groups(self, ids: Sequence[int]) -> np.ndarray:
        """Return [len(ids)]: for placeholders the number of their run, from 1; 0 for all other tokens. In some models
        the placeholders of a run see each other in both directions."""
        placeholder = np.asarray(ids) == self.image_token_id
        begins = placeholder & ~np.concatenate(([False], placeholder[:-1]))
        return np.where(placeholder, np.cumsum(begins), 0)

    def expand(self, text: str, images: Sequence[Screenshot]) -> str:
        """Return the text of a chat template with what the processor writes around each picture in plain letters."""
        front = self.front
        parts = text.split(front.word)
        expansions = [image.expansion for image in self.describe(images)]
        if len(parts) != len(images) + 1 or not any(e.before or e.after or front.before_a_word for e in expansions):
            return text
        out = [parts[0]]
        for expansion, part in zip(expansions, parts[1:], strict=True):
            attached = part[:1] not in ("", "<") and not part[0].isspace()
            after = front.before_a_word if attached else expansion.after
            out += [expansion.before, front.word, after, part]
        return "".join(out)

    # not in inference mode: the learner backpropagates through what the engine encoded
    @torch.inference_mode(False)
    def _process(self, images: list[Screenshot]) -> list[EncodedImage]:
        return [self._encode(image.open()) for image in images]

    def _encode(self, picture: Any) -> EncodedImage:
        array = np.asarray(picture)
        fit = self.front.fit(picture.size)
        as_it_is = fit.size == picture.size and not fit.settings
        if self._patches is not None and as_it_is and self._patches.fits(*array.shape[:2]) and self._is_plain:
            pixels, grid = self._patches(array)
            tensors: dict[str, Tensor] = {"pixel_values": pixels, "image_grid_thw": torch.tensor([grid])}
            expansion = self._run(grid[0] * grid[1] * grid[2] // self.merge**2)
        else:
            expansion, tensors = self.front(picture)
            tensors = {name: t for name, t in tensors.items() if not self._takes or name in self._takes}
        transform = self._transform(picture.size, fit.size, tensors)
        pixels = tensors.pop("pixel_values")
        return EncodedImage(pixels, tensors, expansion, transform)

    @cached_property
    def _is_plain(self) -> bool:
        """Whether pictures stand as placeholders alone."""
        expansion, _ = self.front(blank())
        return not expansion.before and not expansion.after and len(expansion.ids) == len(expansion.places)

    def _run(self, n: int) -> Expansion:
        if n not in self._runs:
            self._runs[n] = Expansion("", np.full(n, self.image_token_id), "", np.arange(n))
        return self._runs[n]

    def _transform(self, size: Size, shown: Size, tensors: Mapping[str, Tensor]) -> PictureTransform | None:
        """Return what was done to a picture of `size`, of which the processor was shown one of the size `shown`."""
        pixels, grid = tensors["pixel_values"], tensors.get("image_grid_thw")
        if grid is not None:
            side = self.processor.patch_size
            fed = int(grid[0, 2]) * side, int(grid[0, 1]) * side
            return PictureTransform(size, fed, resample=_filter_of(self.processor))  # resized, and nothing cut off
        if pixels.ndim != 4 or len(pixels) != 1:  # tiles
            return None
        known = stacked_transform(self.processor, shown, (int(pixels.shape[-1]), int(pixels.shape[-2])))
        if known is None or size == shown:
            return known
        return replace(known, raw_size=size) if known.source is None else None

    def _pack(self, image: EncodedImage) -> EncodedImage:
        """Return the image as it is kept: a large one that is no set of tiles as bytes, where it comes back exactly."""
        if image.bytes < PACKED_FROM or not isinstance(image.stored, Tensor) or image.stored.ndim == 5:
            return image
        return replace(image, stored=pack_pixels(image.stored, self.processor) or image.stored)


def _parameters(owner: Any, name: str) -> set[str]:
    """Return the names that a method takes; none where it is not there."""
    method = getattr(owner, name, None)
    return set() if method is None else set(inspect.signature(method).parameters)


class GridPatches:
    """The patches of a picture that needs no resizing: the HF processor's to the last bit, in a third of the time
    (`benchmarks/patches.py`)."""

    def __init__(self, processor: Any, table: np.ndarray) -> None:
        self._processor = processor
        self._table = table

    @classmethod
    def of(cls, processor: Any) -> GridPatches | None:
        """Return the patches of a processor; None where it does something else than rescale and normalise."""
        from transformers import Qwen2VLImageProcessorPil

        # others with the same fields bound the size of a picture by other rules
        if type(processor) is not Qwen2VLImageProcessorPil or not (processor.do_rescale and processor.do_normalize):
            return None
        values = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 1, 256))
        scaled = processor.rescale(values, processor.rescale_factor)
        table = processor.normalize(scaled, processor.image_mean, processor.image_std)
        return cls(processor, np.ascontiguousarray(table[:, 0], dtype=np.float32))

    def fits(self, height: int, width: int) -> bool:
        """Return whether the processor would leave a picture of this size as it is."""
        p = self._processor
        cell, size = p.patch_size * p.merge_size, p.size
        within = size["shortest_edge"] <= height * width <= size["longest_edge"]
        return height % cell == 0 and width % cell == 0 and within

    def __call__(self, array: np.ndarray) -> tuple[torch.Tensor, tuple[int, int, int]]:
        """Return (patches [rows * columns, channels * time * side * side], grid) of a uint8 picture [H, W, 3]."""
        side, merge, time = (getattr(self._processor, f"{n}_size") for n in ("patch", "merge", "temporal_patch"))
        rows, columns = array.shape[0] // side, array.shape[1] // side
        values = np.stack([self._table[c][array[..., c]] for c in range(3)])
        cells = values.reshape(3, rows // merge, merge, side, columns // merge, merge, side)
        cells = cells.transpose(1, 4, 2, 5, 0, 3, 6)
        patches = np.broadcast_to(cells[:, :, :, :, :, None], (*cells.shape[:5], time, side, side))
        return torch.from_numpy(patches.reshape(rows * columns, -1)), (1, rows, columns)

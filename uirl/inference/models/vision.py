"""Screenshots -> what a vision-language model's forward wants: pixels, placeholder counts, positions.

Two families are understood. Qwen-VL (2, 2.5, 3): images are rows of patches with a grid and rotary positions have
three axes. LLaVA (1.5, ViP) over a tower of CLIP's or SigLIP's kind: images of one size are stacked and positions are
those of the tokens. The HF image processor does the pixels; it is called on image batches, never together with text, so
that token ids stay ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from uirl.errors import AlignmentError, ContractError
from uirl.images import Screenshot
from uirl.inference.models.geometry import grid_transform, stacked_transform
from uirl.inference.models.packing import PackedPixels, pack_pixels
from uirl.inference.models.picture_cache import KEPT_BYTES, PictureCache
from uirl.types import PictureTransform

QWEN_FAMILY = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
STACKED_FAMILY = ("llava", "vipllava")
STACKED_TOWERS = ("clip_vision_model", "siglip_vision_model")
"""Vision towers that make one row of features from a picture of a fixed size."""
PACKED_FROM = 2**20
"""Bytes of pixels from which on they are kept packed: it costs time at every use, and small ones are many."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One image after the processor."""

    stored: torch.Tensor | PackedPixels | None
    """What `pixels` are made of; None: they were dropped."""
    grid: tuple[int, int, int] | None
    """Qwen: (time, rows, columns) in patches; None for stacked images."""
    tokens: int
    """Placeholder tokens the image takes in the sequence."""
    transform: PictureTransform | None = None
    """What was done to the picture before it was cut into patches; None: not known."""

    @property
    def pixels(self) -> torch.Tensor:
        """Qwen: [patches, values]; stacked: [1, C, H, W]."""
        assert self.stored is not None
        return self.stored.unpack() if isinstance(self.stored, PackedPixels) else self.stored

    @property
    def bytes(self) -> int:
        """Bytes that its pixels hold."""
        return 0 if self.stored is None else self.stored.nbytes


class VisionInputs:
    """The picture side of one model. Encoded images are kept by content hash, so that the learner reuses what the
    engine already processed. Threads may share it."""

    def __init__(self, model_config: Any, image_processor: Any, *, cache_bytes: int = KEPT_BYTES) -> None:
        check_family(model_config)
        self.processor = image_processor
        self.has_grid = model_config.model_type in QWEN_FAMILY
        self.axes = 3 if self.has_grid else 1
        token = getattr(model_config, "image_token_id", None)
        self.image_token_id = int(token if token is not None else model_config.image_token_index)
        vision = model_config.vision_config
        self.merge: int = int(getattr(vision, "spatial_merge_size", 1))
        self._stacked_tokens = 0 if self.has_grid else _stacked_tokens(model_config)
        self._patches = GridPatches.of(image_processor) if self.has_grid else None
        self._cache = PictureCache(
            lambda images: self._process(images),
            pack=self._pack,
            bare=lambda image: replace(image, stored=None),
            max_bytes=cache_bytes,
        )

    def keep_at_most(self, cache_bytes: int) -> None:
        """Keep so many bytes of encoded images, and always the newest: for whoever only counts their tokens."""
        self._cache.keep_at_most(cache_bytes)

    async def prepare(self, images: Sequence[Screenshot]) -> None:
        """Encode large pictures aside, so that what follows finds them encoded."""
        await self._cache.prepare(images)

    def encode(self, images: Sequence[Screenshot]) -> list[EncodedImage]:
        """Return the encoded images, in order; those not yet cached go through the processor together."""
        return self._cache.encode(images)

    def describe(self, images: Sequence[Screenshot]) -> list[EncodedImage]:
        """Return the same without their pixels, which may have been dropped since."""
        return self._cache.describe(images)

    def transforms(self, images: Sequence[Screenshot]) -> tuple[PictureTransform | None, ...]:
        """Return what was done to each picture before it was cut into patches; None: not known."""
        return tuple(image.transform for image in self.describe(images))

    def forward_inputs(self, images: Sequence[Screenshot], device: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """Return the keyword arguments for the model's forward; empty without images.

        `pixel_values`: patches of all images one below the other [patches, values], or the images stacked
        [images, C, H, W]. `image_grid_thw` [images, 3], for models with grids: time, rows and columns in patches.
        """
        if not images:
            return {}
        encoded = self.encode(images)
        inputs = {"pixel_values": torch.cat([image.pixels for image in encoded]).to(device=device, dtype=dtype)}
        if self.has_grid:
            inputs["image_grid_thw"] = torch.tensor([image.grid for image in encoded], device=device)
        return inputs

    def spans(self, ids: Sequence[int], images: Sequence[Screenshot]) -> list[tuple[int, int]]:
        """Return the places [start, end) of each image's placeholders in `ids`. Raises AlignmentError where they are
        not all there, or not side by side."""
        places = np.flatnonzero(np.asarray(ids) == self.image_token_id)
        sizes = [image.tokens for image in self.describe(images)]
        if len(places) != sum(sizes):
            raise AlignmentError(
                f"placeholder tokens do not match the images: got {len(places)} in the sequence, expected "
                f"{sum(sizes)} for {len(images)} image(s) of {sizes}; does the text contain the image token?"
            )
        spans, used = [], 0
        for n in sizes:
            start = int(places[used])
            if places[used + n - 1] != start + n - 1:
                raise AlignmentError(f"the placeholders of an image of {n} tokens at {start} are interrupted by text")
            spans.append((start, start + n))
            used += n
        return spans

    def one_placeholder_each(self, ids: Sequence[int], images: Sequence[Screenshot]) -> list[int]:
        """Return `ids` with the placeholders of each image made one, as servers take them that expand it again. Raises
        AlignmentError like `spans`."""
        out: list[int] = []
        at = 0
        for start, end in self.spans(ids, images):
            out += ids[at : start + 1]
            at = end
        return out + list(ids[at:])

    def positions(self, ids: Sequence[int], images: Sequence[Screenshot]) -> tuple[np.ndarray, int]:
        """Return rotary positions [axes, len(ids)] from 0, and the position of the next token.

        Text advances by one on every axis. A Qwen image occupies a block: time stands still, rows and columns count
        from the block's start, and the text after it goes on at start + max(rows, columns) (Qwen2-VL, section 2.1).
        """
        spans = self.spans(ids, images)
        if not self.has_grid or not images:
            return np.broadcast_to(np.arange(len(ids)), (self.axes, len(ids))), len(ids)
        out = np.empty((3, len(ids)), np.int64)
        at = position = 0
        for image, (start, end) in zip(self.describe(images), spans, strict=True):
            out[:, at:start] = np.arange(position, position + start - at)
            position += start - at
            _, height, width = image.grid  # type: ignore[misc]
            rows, columns = height // self.merge, width // self.merge
            out[0, start:end] = position
            out[1, start:end] = position + np.repeat(np.arange(rows), columns)
            out[2, start:end] = position + np.tile(np.arange(columns), rows)
            position += max(rows, columns)
            at = end
        out[:, at:] = np.arange(position, position + len(ids) - at)
        return out, position + len(ids) - at

    @torch.inference_mode(False)
    def _process(self, images: list[Screenshot]) -> list[EncodedImage]:
        # not in inference mode: the learner backpropagates through what the engine encoded
        pictures = [image.open() for image in images]
        if not self.has_grid:
            pixels = self.processor(images=pictures, return_tensors="pt")["pixel_values"]
            fed = (int(pixels.shape[-1]), int(pixels.shape[-2]))
            return [
                EncodedImage(
                    pixels[i : i + 1], None, self._stacked_tokens, stacked_transform(self.processor, picture.size, fed)
                )
                for i, picture in enumerate(pictures)
            ]
        return [self._encode_grid(picture) for picture in pictures]

    def _encode_grid(self, picture: Any) -> EncodedImage:
        array = np.asarray(picture)
        if self._patches is not None and self._patches.fits(*array.shape[:2]):
            pixels, (t, h, w) = self._patches(array)
        else:
            output = self.processor(images=[picture], return_tensors="pt")
            pixels, (t, h, w) = output["pixel_values"], (int(n) for n in output["image_grid_thw"][0])
        side = self.processor.patch_size
        transform = grid_transform(self.processor, picture.size, (w * side, h * side))
        return EncodedImage(pixels, (t, h, w), t * h * w // self.merge**2, transform)

    def _pack(self, image: EncodedImage) -> EncodedImage:
        """Return the image as it is kept: a large one as bytes, where it comes back exactly."""
        if image.bytes < PACKED_FROM or not isinstance(image.stored, torch.Tensor):
            return image
        return replace(image, stored=pack_pixels(image.stored, self.processor) or image.stored)


def check_family(model_config: Any) -> None:
    """Raise ContractError for a vision-language model whose pictures are not understood here."""
    kind = model_config.model_type
    tower = getattr(model_config.vision_config, "model_type", "")
    if kind in QWEN_FAMILY or (kind in STACKED_FAMILY and tower in STACKED_TOWERS):
        return
    over = f" with a tower of type {tower!r}" if kind in STACKED_FAMILY else ""
    raise ContractError(
        f"model type {kind!r}{over} takes images in a way that is not known here; expected one of "
        f"{', '.join(QWEN_FAMILY)}, or one of {', '.join(STACKED_FAMILY)} with a tower of type "
        f"{' or '.join(STACKED_TOWERS)}. Add its rules in uirl/inference/models/vision.py."
    )


def _stacked_tokens(model_config: Any) -> int:
    """Count the features that a picture leaves: one per patch, and that of the whole picture where the tower has one
    and the model keeps it."""
    vision = model_config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2
    whole = 1 if vision.model_type == "clip_vision_model" else 0
    dropped = 1 if getattr(model_config, "vision_feature_select_strategy", "default") == "default" else 0
    return int(patches + whole - dropped)


class GridPatches:
    """The patches of a picture that needs no resizing: the HF processor's to the last bit, in a third of the time
    (`benchmarks/patches.py`)."""

    def __init__(self, processor: Any, table: np.ndarray) -> None:
        self._processor = processor
        self._table = table

    @classmethod
    def of(cls, processor: Any) -> GridPatches | None:
        """Return the patches of a processor; None where it does something else than rescale and normalise."""
        needed = ("patch_size", "merge_size", "temporal_patch_size", "rescale_factor", "image_mean", "image_std")
        if not all(hasattr(processor, name) for name in needed) or not (
            processor.do_rescale and processor.do_normalize
        ):
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

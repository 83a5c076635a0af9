"""docs/models.md, written from the models that the tests build: `python -m tests.inference.models.families_page`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.inference.models.picture_families import FAMILIES, saved
from tests.inference.models.refused_families import REFUSED
from uirl.inference import LoadedModel
from uirl.inference.embedded.attention_proof import proven_spans
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

`position axes`: 3 where pictures have rows and columns. `layers see`: what the embedded engine found.
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

## Families that are refused

"""


def models_page(built: Callable[[str], LoadedModel]) -> str:
    """The page, of models by the name of their family."""
    rows = [
        "| family | known as | processor | position axes | layers see | prompts shared |",
        "|---|---|---|---|---|---|",
    ]
    rows += [_row(name, built(name)) for name in FAMILIES]
    refused = ["| family | why | where |", "|---|---|---|"]
    refused += [f"| {name} | {each.reason} | {each.by} |" for name, each in REFUSED.items()]
    return _BEFORE + "\n".join(rows) + "\n" + _AFTER + "\n".join(refused) + "\n"


def _row(name: str, loaded: LoadedModel) -> str:
    assert loaded.vision is not None
    spans = proven_spans(loaded)
    kinds = ["all" if size is None else kind.split("_")[0] for kind, size in spans.sizes.items()]
    sees = " and ".join(sorted(kinds)) + (", pictures in both directions" if spans.both_ways else "")
    processor = loaded.vision.front.name
    shared = "yes" if prompts_can_be_shared(loaded) else "no"
    return f"| {name} | {FAMILIES[name].checkpoints} | `{processor}` | {loaded.axes} | {sees} | {shared} |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(models_page(lambda name: saved(name, Path(folder) / name.replace(" ", "_"))))

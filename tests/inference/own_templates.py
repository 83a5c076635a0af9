"""The chat templates of public families, unmodified, as packages on PyPI ship them (`requirements-templates.txt`)."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transformers

from tests.inference.families import knowing
from uirl.errors import ContractError
from uirl.inference import ChatRenderer, LoadedModel
from uirl.inference.models.dialect import Dialect, dialect_of
from uirl.inference.models.tiny import build_tokenizer
from uirl.parsers import create_parser

FOLDER = Path(__file__).parents[2] / ".venv-templates"
_TRL, _AXOLOTL = "trl/chat_templates", "axolotl/utils/chat_templates/templates"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Computes.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string", "description": "What to compute."}},
                "required": ["expression"],
            },
        },
    }
]
_RENDERERS: dict[tuple[str, int, bool], ChatRenderer] = {}
_SEEING: dict[tuple[str, int], tuple[LoadedModel, Dialect]] = {}
_CONTROL = re.compile(r"<\|?[^\s<>'\"{}()%=,;]{1,40}>|<｜[^｜]{1,40}｜>|\[/?[A-Z_]{3,}\]|\[\|[a-z]+\|\]")


@functools.cache
def _base() -> Any:
    return build_tokenizer(512).backend_tokenizer


@dataclass(frozen=True)
class Own:
    """The template of one family."""

    file: str
    ends: tuple[str, ...]
    """The end tokens that its generation_config.json names."""
    picture: str = ""
    """What stands for a picture; empty: a text model."""
    refused: str = ""
    """Why it is refused; empty: it is not."""

    def text(self) -> str:
        """The template. Fails where the packages are not there."""
        path = FOLDER / self.file
        assert path.is_file(), f"{path} is missing; `make templates` fetches it"
        return path.read_text()

    def loaded(self, model: LoadedModel) -> LoadedModel:
        """`model` with this template, for rendering: its tokenizer knows the words of the template."""
        template = self.text()
        base = _base()
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=base.from_str(base.to_str()),
            bos_token="<s>",
            eos_token=self.ends[0],
            pad_token="<|endoftext|>",
            chat_template=template,
        )
        words = [*self.ends, *dict.fromkeys(_CONTROL.findall(template))]
        tokenizer.add_special_tokens({"additional_special_tokens": words}, False)
        ends = tuple(tokenizer.convert_tokens_to_ids(word) for word in self.ends)
        known = replace(model, tokenizer=tokenizer, banned_ids=(), end_ids=ends, vision=None, name="the model")
        return knowing(known)

    def renderer(self, model: LoadedModel, tools: Any = ()) -> ChatRenderer:
        """What renders conversations with this template, made once: to try a template takes seconds."""
        key = (self.file, id(model), bool(tools))
        if key not in _RENDERERS:
            _RENDERERS[key] = ChatRenderer(self.loaded(model), tools, calls=create_parser("qwen"))
        return _RENDERERS[key]

    def seeing(self, model: LoadedModel) -> tuple[LoadedModel, Dialect]:
        """`model` with this template and a picture's word, and how it reads messages, found once."""
        if (self.file, id(model)) not in _SEEING:
            front: Any = SimpleNamespace(front=SimpleNamespace(word=self.picture))
            loaded = replace(self.loaded(model), vision=front)
            _SEEING[self.file, id(model)] = loaded, dialect_of(loaded)
        return _SEEING[self.file, id(model)]


def _trl(name: str, *ends: str, picture: str = "") -> Own:
    return Own(f"{_TRL}/{name}.jinja", ends, picture)


def _axolotl(name: str, *ends: str, picture: str = "", refused: str = "") -> Own:
    return Own(f"{_AXOLOTL}/{name}.jinja", ends, picture, refused)


_QWEN = ("<|im_end|>", "<|endoftext|>")
_PAD = "<|image_pad|>"
OWN = {
    "Qwen2.5": _trl("qwen2_5", *_QWEN),
    "Qwen3": _trl("qwen3", *_QWEN),
    "Qwen3-2507": _trl("qwen3_instruct_2507", *_QWEN),
    "Llama 3": _trl("llama3", "<|eot_id|>"),
    "Llama 3.1, 3.3": _trl("llama3_1", "<|eot_id|>", "<|eom_id|>"),
    "Llama 3.2": _trl("llama3_2", "<|eot_id|>", "<|eom_id|>"),
    "Gemma, Gemma 2": _trl("gemma", "<end_of_turn>", "<eos>"),
    "Mistral 0.1": _axolotl("mistral_v1", "</s>"),
    "Mistral 0.3": _axolotl("mistral_v2v3", "</s>"),
    "Mistral Nemo": _axolotl("mistral_v3_tekken", "</s>"),
    "Phi-3": _trl("phi3", "<|end|>", "<|endoftext|>"),
    "Phi-3.5": _trl("phi3_5", "<|end|>", "<|endoftext|>"),
    "Phi-4": _axolotl("phi_4", "<|im_end|>"),
    "DeepSeek-V3": _trl("deepseekv3", "<｜end▁of▁sentence｜>"),
    "DeepSeek-R1-Distill": _trl("deepseek_r1_distill", "<｜end▁of▁sentence｜>"),
    "GLM-4-MoE": _trl("glm4moe", "<|endoftext|>", "<|user|>", "<|observation|>"),
    "gpt-oss": _trl("gptoss", "<|return|>", "<|call|>"),
    "Command R": _trl("cohere", "<|END_OF_TURN_TOKEN|>"),
    "Command R7B": _trl("cohere2", "<|END_OF_TURN_TOKEN|>"),
    "Command A": _axolotl("command_a", "<|END_OF_TURN_TOKEN|>"),
    "EXAONE 4": _axolotl("exaone4", "[|endofturn|]"),
    "LFM2": _trl("lfm2_v2", "<|im_end|>"),
    "Nemotron 3": _trl("nemotron_3_nano", "<|im_end|>"),
    "Falcon-H1": _axolotl("falcon_h1", "<|im_end|>"),
    "Qwen2-VL": _axolotl("qwen2_vl", *_QWEN, picture=_PAD),
    "Qwen2.5-VL": _trl("qwen2_5_vl", *_QWEN, picture=_PAD),
    "Qwen3-VL": _trl("qwen3_vl", *_QWEN, picture=_PAD),
    "Qwen3.5": _trl("qwen3_5_think", *_QWEN, picture=_PAD),
    "Idefics3": _trl("idefics3", "<end_of_utterance>", picture="<image>"),
    "SmolVLM": _trl("smolvlm", "<end_of_utterance>", picture="<image>"),
    "LLaVA-NeXT": _trl("llava_next", "</s>", picture="<image>"),
    "Gemma 3": _trl("gemma3", "<end_of_turn>", picture="<start_of_image>"),
    "Gemma 3n": _axolotl("gemma3n", "<end_of_turn>", picture="<image_soft_token>"),
    "Gemma 4": _trl("gemma4_v5", "<turn|>", picture="<|image|>"),
    "Pixtral": _axolotl("pixtral", "</s>", picture="[IMG]"),
    "Mistral Small 3": _axolotl("mistral_v7_tekken", "</s>", picture="[IMG]"),
    "Llama 3.2 Vision": _axolotl("llama3_2_vision", "<|eot_id|>", picture="<|image|>"),
    "LFM2-VL": _trl("lfm2_2_5_vl", "<|im_end|>", picture="<image>"),
    "LLaVA-1.5": _axolotl(
        "llava", "</s>", picture="<image>", refused="it writes no end token; set `model.chat_template` to one that does"
    ),
}


def templates_table(model: LoadedModel, tools: Any) -> str:
    """The table of docs/models.md: what was found by rendering each template."""
    rows = [
        "| family | system message | tools | their results | earlier thoughts | pictures | history |",
        "|---" * 7 + "|",
    ]
    for name, own in OWN.items():
        try:
            chat = own.renderer(model, tools)
        except ContractError:
            rows.append(f"| {name} | refused: {own.refused} | | | | | |")
            continue
        found = chat.dialect
        cells = (
            "its own" if found.system else "at the head of the first user message",
            "in the system prompt" if chat.described else "by the template",
            "its own role" if found.tool else "a user message",
            "kept" if found.thoughts else "left out",
            "" if not own.picture else "yes" if own.seeing(model)[1].pictures else "no",
            "appended" if chat.incremental else "rendered anew",
        )
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"

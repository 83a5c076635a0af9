"""Tokenizers and chat templates as the large families of models have them, small."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from uirl.inference import LoadedModel
from uirl.inference.models.templates import TEMPLATES

CHATML_WORDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISION_WORDS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

QWEN2_VL = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN3 = (
    "{%- if tools %}{{- '<|im_start|>system\n# Tools\n<tools>' }}{% for tool in tools %}{{- '\n' + tool | tojson }}"
    "{% endfor %}{{- '\n</tools>\nReturn <tool_call></tool_call>.<|im_end|>\n' }}{% endif %}"
    "{%- set ns = namespace(last=messages|length - 1, multi=true) %}{%- for message in messages[::-1] %}"
    "{%- if ns.multi and message.role == 'user' and message.content is string and not"
    "(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}"
    "{%- set ns.multi = false %}{%- set ns.last = messages|length - 1 - loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- if message.role in ('user', 'system') %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- elif message.role == 'assistant' %}{%- set content = message.content %}{%- set thought = '' %}"
    "{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last and thought %}"
    "{{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{%- else %}{{- '<|im_start|>assistant\n' + content }}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- elif message.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
LLAMA_3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = '<|begin_of_text|>' + "
    "content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for message in messages %}{% if message['role'] == 'tool' %}"
    "{{ '[TOOL_RESULTS] {\"content\": ' + message['content'] | tojson + '}[/TOOL_RESULTS]' }}"
    "{% elif message['role'] in ('user', 'system') %}{{ '[INST] ' + message['content'] + '[/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + '</s>' }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ '<bos>' }}{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else 'user' %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


def knowing(loaded: LoadedModel) -> LoadedModel:
    """`loaded` with a row in the embedding for every token of its tokenizer."""
    model = copy.deepcopy(loaded.model)
    model.resize_token_embeddings(max(len(loaded.tokenizer), loaded.vocabulary))  # type: ignore[operator]
    return replace(loaded, model=model)


@dataclass(frozen=True, slots=True)
class Family:
    """A tokenizer of one kind and a chat template."""

    kind: str
    """'bytes' (GPT-2, Qwen, Llama 3), 'spaces' (Gemma: bytes where a letter is unknown), 'prefix' (Llama 2, early
    Mistral: a space before every stretch), 'unigram' (its vocabulary holds the control tokens as pieces)."""
    special: tuple[str, ...]
    template: str
    end: str
    plain: tuple[str, ...] = ()
    """Added tokens that are not flagged special."""

    def loaded(self, model: LoadedModel) -> LoadedModel:
        """`model` with this tokenizer, for rendering."""
        tokenizer = self.tokenizer()
        end = tokenizer.convert_tokens_to_ids(self.end)
        return knowing(replace(model, tokenizer=tokenizer, banned_ids=(), end_ids=(end,), vision=None))

    def tokenizer(self) -> Any:
        """A tokenizer trained on a few words."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

        corpus = ["press the red button", "tool response im end start of turn", "a number between 1 and 7", "INST"] * 50
        if self.kind == "bytes":
            raw = Tokenizer(models.BPE())
            raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            raw.decoder = decoders.ByteLevel()
            alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
            raw.train_from_iterator(
                corpus, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
            )
        else:
            model = models.Unigram() if self.kind == "unigram" else models.BPE(unk_token="<unk>", byte_fallback=True)
            raw = Tokenizer(model)
            replaced = [normalizers.Replace(" ", "▁")]
            prefixed = [normalizers.Prepend("▁")] if self.kind == "prefix" else []
            raw.normalizer = normalizers.Sequence([*prefixed, *replaced])
            raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
            letters = [chr(n) for n in range(32, 127)] + ["\n"]
            known = ["<unk>", *[f"<0x{n:02X}>" for n in range(256)], *self.special]
            kind = trainers.UnigramTrainer if self.kind == "unigram" else trainers.BpeTrainer
            extra = {"unk_token": "<unk>"} if self.kind == "unigram" else {}
            raw.train_from_iterator(
                corpus,
                kind(vocab_size=520, special_tokens=known, initial_alphabet=letters, show_progress=False, **extra),
            )
            # the trainer flags all that it was told to put into the vocabulary
            flagged, raw = raw, Tokenizer(raw.model)
            raw.normalizer, raw.decoder = flagged.normalizer, flagged.decoder
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=self.end, chat_template=self.template)
        tokenizer.add_special_tokens({"additional_special_tokens": list(self.special)})
        tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in self.plain])
        return tokenizer


_QWEN_PLAIN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_LLAMA_WORDS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_MISTRAL_WORDS = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
_GEMMA_WORDS = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")

FAMILIES = {
    "chatml": Family("bytes", CHATML_WORDS, TEMPLATES["chatml"], "<|im_end|>"),
    "qwen2-vl": Family("bytes", CHATML_WORDS + VISION_WORDS, QWEN2_VL, "<|im_end|>"),
    "qwen2.5": Family("bytes", CHATML_WORDS, TEMPLATES["hermes"], "<|im_end|>", _QWEN_PLAIN[:2]),
    "qwen3": Family("bytes", CHATML_WORDS, QWEN3, "<|im_end|>", _QWEN_PLAIN),
    "llama-3": Family("bytes", (*_LLAMA_WORDS, *(f"<|reserved_{n}|>" for n in range(250))), LLAMA_3, "<|eot_id|>"),
    "mistral": Family("spaces", _MISTRAL_WORDS, MISTRAL, "</s>"),
    "mistral-prefix": Family("prefix", _MISTRAL_WORDS, MISTRAL, "</s>"),
    "gemma": Family("spaces", _GEMMA_WORDS, GEMMA, "<end_of_turn>", ("\n\n", "▁▁", "<table>")),
    "unigram": Family("unigram", _GEMMA_WORDS, GEMMA, "<end_of_turn>"),
}

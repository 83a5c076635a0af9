"""Chat templates for tokenizers that bring none, and those that stand beside a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
        "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "hermes": (
        "{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
        "{% if system or tools %}{{ '<|im_start|>system\n' + system }}{% if tools %}"
        "{{ ('\n\n' if system else '') + 'You can call these functions:\n<tools>' }}"
        "{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}"
        "{{ '\n</tools>\nTo call one, write\n<tool_call>\n' }}"
        "{{ '{\"name\": NAME, \"arguments\": {...}}\n</tool_call>' }}{% endif %}{{ '<|im_end|>\n' }}{% endif %}"
        "{% for message in messages if message['role'] != 'system' %}"
        "{% if message['role'] == 'tool' %}"
        "{% if loop.first or loop.previtem['role'] != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
        "{{ '\n<tool_response>\n' + message['content'] + '\n</tool_response>' }}"
        "{% if loop.last or loop.nextitem['role'] != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
        "{% else %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
        "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
        "{% endif %}{% for call in message['tool_calls'] or [] %}"
        "{{ '\n<tool_call>\n' + (call['function'] | tojson) + '\n</tool_call>' }}{% endfor %}"
        "{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama-2": (
        "{% if messages[0]['role'] == 'system' %}"
        "{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
        "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
        "{% for message in rest %}{% if message['role'] in ('user', 'tool') %}"
        "{{ '<s>[INST] ' + (system if loop.first else '') + message['content'] + ' [/INST]' }}"
        "{% else %}{{ ' ' + message['content'] + '</s>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ ' ' }}{% endif %}"
    ),
    "llama-3": (
        "{{ '<|begin_of_text|>' }}{% for message in messages %}"
        "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] + '<|eot_id|>' }}"
        "{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
}


def template_of_processor(path: str) -> str | None:
    """Return the chat template that a checkpoint (a folder or a HF id) has for its processor where tokenizers do not
    look: in `chat_template.json` or `processor_config.json`. None: it has none, or a newer file that they read."""
    from transformers.utils import cached_file

    def found(name: str) -> str | None:
        file: str | None = cached_file(
            path, name, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
        )
        return file

    if found("chat_template.jinja") is not None:
        return None
    for name in ("chat_template.json", "processor_config.json"):
        file = found(name)
        template = json.loads(Path(file).read_text(encoding="utf-8")).get("chat_template") if file else None
        if isinstance(template, str):
            return template
    return None

"""Processors of Qwen-VL models without their video side, which cannot be loaded without torchvision."""

from __future__ import annotations

from typing import Any

import transformers
from transformers.processing_utils import ProcessorMixin


class PicturesOnly:
    """A processor that takes no videos. The classes below keep their names, by which verl and TRL know them."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


class Qwen2VLProcessor(PicturesOnly, transformers.Qwen2VLProcessor):
    pass


class Qwen2_5_VLProcessor(PicturesOnly, transformers.Qwen2_5_VLProcessor):
    pass


class Qwen3VLProcessor(PicturesOnly, transformers.Qwen3VLProcessor):
    pass


def register() -> None:
    """Makes `AutoProcessor` give these processors for the configs of their models."""
    transformers.AutoProcessor.register(transformers.Qwen2VLConfig, Qwen2VLProcessor, exist_ok=True)
    transformers.AutoProcessor.register(transformers.Qwen2_5_VLConfig, Qwen2_5_VLProcessor, exist_ok=True)
    transformers.AutoProcessor.register(transformers.Qwen3VLConfig, Qwen3VLProcessor, exist_ok=True)

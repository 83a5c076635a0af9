"""The policy as one object for people with a loop of their own: predict an action, get a loss, save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uirl.config import LoraConfig, ModelConfig
from uirl.errors import AlignmentError
from uirl.images import Screenshot, screenshot
from uirl.inference import ChatRenderer, Message, TextEngine, TransformersInferenceEngine
from uirl.inference.models.loading import hidden_states, pad_sequences, project
from uirl.learner.checkpoint import export_hf
from uirl.learner.policy import Policy

IGNORED = -100
"""A label that is no target, as in HF and torch."""


class VLMWrapper(nn.Module):
    """A HuggingFace vision-language (or language) model that acts and learns.

    `model_name`: a HF id, a folder, or a built-in model ('uirl/tiny-vlm'). `lora_config`: keys of `model.lora` (`r`,
    `lora_alpha`, `target`, ...). `options`: further keys of the `model` section (`chat_template`, `tiny`, ...). Wrong
    keys raise ConfigError. `policy` is what a `Learner` trains.
    """

    def __init__(
        self,
        model_name: str,
        use_lora: bool = False,
        lora_config: Mapping[str, Any] | LoraConfig | None = None,
        device: str = "auto",
        dtype: str | None = None,
        *,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        if isinstance(lora_config, Mapping):
            lora_config = LoraConfig(**lora_config)
        options |= {} if lora_config is None else {"lora": lora_config}
        config = ModelConfig(
            model_name=model_name,
            use_lora=use_lora,
            device=device,
            dtype=dtype,  # type: ignore[arg-type]
            **options,
        )
        self.config = config
        self.policy = Policy.from_model_config(config, seed=seed)
        self.model = self.policy.model
        self.chat = ChatRenderer(self.policy.loaded)

    def predict_action(
        self,
        screenshot: Any = None,
        prompt: str = "",
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
    ) -> str:
        """Return the reply to `prompt` beside a picture (PIL image, encoded bytes, array, `Screenshot`; None: no
        picture).

        Greedy unless `temperature` is given. Works inside a running event loop too, which then waits.
        """
        engine = TextEngine(self.policy.loaded, TransformersInferenceEngine(self.policy.loaded, shared=True))
        training = self.model.training
        try:
            output = engine.generate([[_message(prompt, screenshot)]], max_tokens, temperature, seed=seed)
        finally:
            self.policy.train(training)
        return output.sequences[0]

    def forward(
        self, images: Sequence[Any] | None, prompts: str | Sequence[str], labels: Sequence[str] | Tensor | None = None
    ) -> dict[str, Tensor | None]:
        """Return `loss` (None without labels), `logits` [B, T, V] and `input_ids` [B, T] of a batch of prompts.

        `loss` is the mean negative log-likelihood of the reply tokens.

        Args:
            images: For each prompt a picture, a list of pictures, or None; None for no pictures at all.
            prompts: One or many; each becomes a user message in the model's chat template.
            labels: The reply of each prompt as text (its end token is added), or as token ids int64 [B, L],
                right-padded with -100.

        `input_ids` are prompt and reply, right-padded; `logits[b, t]` predict token t + 1.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        pictures = [None] * len(prompts) if images is None else list(images)
        replies = self._replies(labels, len(prompts))
        if len(pictures) != len(prompts):
            raise AlignmentError(f"got {len(pictures)} images for {len(prompts)} prompts; give one each, or None")
        messages = [_message(prompt, picture) for prompt, picture in zip(prompts, pictures, strict=True)]
        heads = [self.chat.whole([message]) for message in messages]
        shown = [message.images for message in messages]
        loaded = self.policy.loaded
        input_ids, positions = pad_sequences(loaded, [h + r for h, r in zip(heads, replies, strict=True)], shown)
        hidden = hidden_states(loaded, input_ids, positions, [image for of_prompt in shown for image in of_prompt])
        logits = project(loaded, hidden)
        loss = None
        if labels is not None:
            targets = torch.full_like(input_ids, IGNORED)
            for row, (head, reply) in enumerate(zip(heads, replies, strict=True)):
                targets[row, len(head) : len(head) + len(reply)] = torch.tensor(reply)
            loss = nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), ignore_index=IGNORED
            )
        return {"loss": loss, "logits": logits, "input_ids": input_ids}

    def train(self, mode: bool = True) -> VLMWrapper:
        """Switch to training mode where something needs it; dropout stays off, see `uirl.learner.policy`."""
        super().train(mode)
        self.policy.train(mode)
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder that HF's `from_pretrained` and `VLMWrapper(folder)` read, adapters merged."""
        export_hf(folder, self.policy)

    def _replies(self, labels: Sequence[str] | Tensor | None, n: int) -> list[list[int]]:
        if labels is None:
            return [[] for _ in range(n)]
        if len(labels) != n:
            raise AlignmentError(f"got {len(labels)} labels for {n} prompts; give one each")
        if not isinstance(labels, Tensor):
            return [self.chat.demonstration(text) for text in labels]
        rows = [row.tolist() for row in labels.reshape(n, -1)]
        replies = [[token for token in row if token != IGNORED] for row in rows]
        for i, (row, reply) in enumerate(zip(rows, replies, strict=True)):
            if row[: len(reply)] != reply:
                raise AlignmentError(
                    f"labels[{i}] has {IGNORED} between tokens; expected the token ids of the reply alone, "
                    f"right-padded with {IGNORED} (the prompt is rendered from the text and is no part of the labels)"
                )
        return replies


def _message(prompt: str, pictures: Any) -> Message:
    if pictures is None:
        images: tuple[Screenshot, ...] = ()
    elif isinstance(pictures, (list, tuple)):
        images = tuple(screenshot(picture) for picture in pictures)
    else:
        images = (screenshot(pictures),)
    return Message("user", prompt, images)

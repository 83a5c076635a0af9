"""A stand-in for OpenAI-compatible servers: one that talks in token ids, one in texts, one in messages alone."""

from __future__ import annotations

import base64
import json
from collections import deque
from typing import Any

from tests.inference.stand_in_brain import Brain, Sampled
from tests.inference.stand_in_http import Answer, Seen, StandIn
from uirl.images import Screenshot
from uirl.inference import ChatRenderer, LoadedModel, Message

COMPLETION_FIELDS = {
    *("model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "logprobs", "logit_bias", "n"),
    *("presence_penalty", "frequency_penalty"),
}
CHAT_FIELDS = {
    *("model", "messages", "max_tokens", "temperature", "top_p", "seed", "stop", "tools", "logprobs", "top_logprobs"),
    *("presence_penalty", "frequency_penalty"),
}


class StandInOpenAI(StandIn):
    """`grade` 'ids': vLLM with return_token_ids; 'text': completions with token strings; 'chat': nothing but chat.

    `reports`: its log-probs are those after filters ('kept': vLLM's --logprobs-mode processed_logprobs), of the plain
    model ('raw'), after temperature ('scaled'), or after filters but not after temperature ('unscaled').
    `defaults`: fields that hold where a request does not say them, as those of a generation_config.json. `takes`:
    further fields. `no_limit`: the values of top_k that mean so. `scripted`: messages that the chat API answers, in
    turn.
    """

    def __init__(self, loaded: LoadedModel, grade: str, **options: Any) -> None:
        self.loaded, self.brain, self.grade = loaded, Brain(loaded), grade
        self.reports = options.get("reports", "kept")
        self.models = options.get("models", [loaded.name])
        self.refuses = set(options.get("refuses", ()))
        self.takes = set(options.get("takes", ()))
        self.defaults = options.get("defaults", {})
        self.no_limit = options.get("no_limit", (-1, 0))
        self.shaped: set[str] = set()
        """Penalties that changed an answer (they are noticed, and not applied)."""
        self.limit_field = options.get("limit_field", "max_tokens")
        self.other_tokens = options.get("other_tokens", False)
        self.other_prompt = options.get("other_prompt", False)
        self.scripted: deque[Any] = deque()
        self.spoil: dict[str, Any] = {}
        """Entries of a choice that come out otherwise."""
        self.usage: dict[str, Any] | None = {}
        super().__init__()

    def answer(self, seen: Seen) -> Answer:
        if seen.path == "/v1/models" and self.models is not None:
            return Answer({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})
        known = seen.method == "POST" and self.models is not None and seen.body.get("model") not in self.models
        if known:
            return _refused(f"The model `{seen.body.get('model')}` does not exist.", 404)
        if seen.path == "/v1/completions" and self.grade != "chat":
            return self._complete(seen.body)
        if seen.path == "/v1/chat/completions" and self.grade != "text":
            return self._chat(seen.body)
        return _refused("Not Found", 404)

    def _complete(self, body: dict[str, Any]) -> Answer:
        vllm = {"return_token_ids", "stop_token_ids", "top_k", "min_p", "repetition_penalty"}
        extra = self.takes | (vllm if self.grade == "ids" else set())
        wrong = set(body) - (COMPLETION_FIELDS | extra) | (self.refuses & set(body)) | self._not_no_limit(body)
        if wrong:
            return _refused(f"Unrecognized request argument supplied: {', '.join(sorted(wrong))}")
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = self.loaded.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        ends = [self.loaded.tokenizer.eos_token_id, *body.get("stop_token_ids", ())]
        made = self._sample(body, prompt, (), ends)
        text = self._words(made)
        words = [self.loaded.tokenizer.decode([token]) for token in made.ids]
        changed = body.get("top_p", 1.0) < 1 or "logit_bias" in body or body.get("top_k", 0) > 0
        of = {"unscaled": "kept" if changed else "raw"}.get(self.reports, self.reports)
        values = getattr(made, of) if body.get("temperature", 1.0) > 0 else made.raw
        choice: dict[str, Any] = {
            "index": 0,
            "text": text,
            "finish_reason": "stop" if made.stopped else "length",
            "stop_reason": None,
            "logprobs": None,
        }
        if body.get("logprobs") is not None:
            tops = [{word: value} for word, value in zip(words, values, strict=True)]
            choice["logprobs"] = {"tokens": words, "token_logprobs": values, "top_logprobs": tops, "text_offset": []}
        if body.get("return_token_ids"):
            shift = 1 if self.other_tokens else 0
            choice |= {
                "token_ids": [token + shift for token in made.ids],
                "prompt_token_ids": prompt[1:] if self.other_prompt else prompt,
            }
        return self._whole("text_completion", choice, prompt, made)

    def _chat(self, body: dict[str, Any]) -> Answer:
        fields = (CHAT_FIELDS - {"max_tokens"}) | {self.limit_field} | self.takes
        wrong = set(body) - fields | self._not_no_limit(body)
        if "max_tokens" in wrong:
            return _refused(
                "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'."
            )
        if wrong:
            return _refused(f"Unrecognized request argument supplied: {', '.join(sorted(wrong))}")
        problem = _wrong_order(body["messages"])
        if problem:
            return _refused(problem)
        if self.scripted and body.get(self.limit_field) != 1:
            message, reason = self.scripted.popleft()
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return Answer({"object": "chat.completion", "choices": [choice | self.spoil]})
        messages = [_message(m) for m in body["messages"]]
        shots = [shot for m in messages for shot in m.images]
        prompt = ChatRenderer(self.loaded).whole(messages)
        limited = body | {"max_tokens": body.get(self.limit_field, 16)}
        made = self._sample(limited, prompt, shots, self.loaded.end_ids)
        message = {"role": "assistant", "content": self._words(made)}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if made.stopped else "length"}
        return self._whole("chat.completion", choice, prompt, made)

    def _not_no_limit(self, body: dict[str, Any]) -> set[str]:
        return {"top_k"} if body.get("top_k", 1) < 1 and body["top_k"] not in self.no_limit else set()

    def _sample(self, body: dict[str, Any], prompt: list[int], shots: Any, ends: Any) -> Sampled:
        body = self.defaults | body
        neutral = {"min_p": 0, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
        if body.get("max_tokens", 16) > 1:  # more than a probe
            self.shaped |= {name for name, value in neutral.items() if body.get(name, value) != value}
        return self.brain.sample(
            prompt,
            shots,
            limit=body.get("max_tokens", 16),
            temperature=body.get("temperature", 1.0),
            top_p=body.get("top_p", 1.0),
            top_k=max(body.get("top_k", 0), 0),
            bias={int(k): v for k, v in body.get("logit_bias", {}).items()},
            stop=ends,
            seed=body.get("seed"),
        )

    def _words(self, made: Sampled) -> str:
        ids = made.ids[:-1] if made.stopped else made.ids
        return self.loaded.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _whole(self, kind: str, choice: dict[str, Any], prompt: list[int], made: Sampled) -> Answer:
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(made.ids)}
        whole = {"id": "x", "object": kind, "model": self.models[0] if self.models else "x"}
        choice = {name: value for name, value in (choice | self.spoil).items() if value != "missing"}
        return Answer(whole | {"choices": [choice], "usage": None if self.usage is None else usage | self.usage})


def _refused(message: str, status: int = 400) -> Answer:
    return Answer({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, status)


def _wrong_order(messages: list[dict[str, Any]]) -> str:
    """What OpenAI says of messages that it does not take; empty: it takes them."""
    waiting: list[str] = []
    for i, message in enumerate(messages):
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return f"messages[{i}]: 'tool' must be a response to a preceding message with 'tool_calls'."
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f"messages[{i}]: tool_call_ids did not have response messages: {waiting}"
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        for call in message.get("tool_calls") or ():
            json.loads(call["function"]["arguments"])
    return ""


def _message(wire: dict[str, Any]) -> Message:
    content = wire["content"]
    if isinstance(content, str) or content is None:
        return Message("user" if wire["role"] == "tool" else wire["role"], content or "")
    shots, text = [], ""
    for part in content:
        if part["type"] == "image_url":
            encoded = part["image_url"]["url"].partition("base64,")[2]
            shots.append(Screenshot(base64.b64decode(encoded, validate=True)))
        else:
            text += part["text"]
    return Message(wire["role"], text, tuple(shots))

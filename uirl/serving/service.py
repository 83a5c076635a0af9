"""What a call does, without HTTP: prompt, engine, replies, record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from uirl.errors import EngineFailure, PromptTooLong, SamplingRefused
from uirl.images import ImageStore
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, SamplingParams
from uirl.inference.messages import Message
from uirl.inference.models.chat import ChatRenderer
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.token_bytes import TokenBytes
from uirl.parsers.base import ActionParser
from uirl.rollout.episode import derive_seed
from uirl.serving.protocol.chat_requests import CallOptions, ChatCall, CompletionCall
from uirl.serving.protocol.fields import APIProblem, bad_request
from uirl.serving.rendering import SMALL, LengthCheck, Renderers, beside_the_loop, rendering, texts_of
from uirl.serving.replies import AS_IT_LIKES, Answer, Reply, ToolChoice, cut_at_stop, text_reply, tool_reply
from uirl.serving.session import TOO_LONG, AgentSession
from uirl.serving.transcript import Prompt, Transcript

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    """One call on its way to the engine."""

    prompt: Prompt
    param: str
    """The field in which the prompt came."""
    options: CallOptions
    decode: Callable[[Sequence[int]], str]
    parser: ActionParser | None = None
    """Reads the calls in a reply; None: it is text."""
    offered: Collection[str] = ()
    """Names of the tools the client has."""
    note: Mapping[str, Any] = field(default_factory=dict)
    """For the record of every turn."""
    choice: ToolChoice = AS_IT_LIKES
    chat: ChatRenderer | None = None


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One reply that was sampled."""

    request: GenerationRequest
    reply: Reply
    note: Mapping[str, Any] = field(default_factory=dict)

    def short_of(self, missed: str) -> _Drawn:
        """Return the same with what it lacks of what the client wants."""
        action = self.reply.action
        action = replace(action, parse_error=action.parse_error or missed)
        return replace(self, reply=replace(self.reply, action=action), note={**self.note, "missed": missed})


@dataclass(slots=True)
class ModelService:
    """Answers calls with one engine."""

    engine: InferenceEngine
    loaded: LoadedModel
    parser: ActionParser
    images: ImageStore
    sampling: SamplingParams
    """What a client gets where it asks for nothing."""
    max_context: int
    """Prompt and reply together, in tokens."""
    max_pending: int
    """Calls on their way; the next is told to come back."""
    renderers: Renderers
    lengths: LengthCheck = field(init=False)
    token_bytes: TokenBytes = field(init=False)
    _pending: int = 0
    _stop_ids: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lengths = LengthCheck(self.loaded.tokenizer, self.max_context)
        self.token_bytes = TokenBytes(self.loaded)

    async def answer(self, call: ChatCall | CompletionCall, session: AgentSession | None) -> Answer:
        """Answer a call, recorded in `session` (None: nowhere)."""
        with self._admitted(), nullcontext() if session is None else session.call():
            transcript = Transcript() if session is None else session.transcript
            if isinstance(call, ChatCall):
                self._check_pictures(call)
                ready = await beside_the_loop(_size_of(call), lambda: self._of_messages(call, transcript))
            else:
                # it is compared with everything that was recorded
                size = len(call.prompt) * (1 + len(transcript.exchanges))
                ready = await beside_the_loop(size, lambda: self._of_prompt(call, transcript))
            for shot in ready.prompt.new_images:
                self.images.put(shot)
            return await self._answer(ready, session)

    def _of_messages(self, call: ChatCall, transcript: Transcript) -> _Call:
        self.lengths.check(texts_of(call.messages, call.tools_key), "messages")
        chat = self.renderers.get(call.tools_key, call.tools)
        with rendering("messages"):
            prompt = transcript.chat_prompt(call.messages, call.tools_key, chat)
        note: dict[str, Any] = {"ignored_fields": list(call.ignored)} if call.ignored else {}
        note |= {} if call.choice == AS_IT_LIKES else {"tool_choice": call.choice.mode}
        reads = call.tools and call.choice.reads_calls
        parser = self.parser.for_tools(call.tools) if reads else None
        offered = frozenset(tool["function"]["name"] for tool in call.tools)
        return _Call(prompt, "messages", call.options, chat.decode, parser, offered, note, call.choice, chat)

    def _of_prompt(self, call: CompletionCall, transcript: Transcript) -> _Call:
        ids, text = self._ids_and_text(call.prompt)
        if self.loaded.vision is not None and self.loaded.vision.image_token_id in ids:
            raise bad_request("holds the placeholder of a picture; pictures go to /chat/completions", "prompt")
        prompt = transcript.token_prompt(ids, text, (Message("user", text),))
        decode = partial(self.loaded.tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return _Call(prompt, "prompt", call.options, decode)

    def _ids_and_text(self, prompt: str | tuple[int, ...]) -> tuple[tuple[int, ...], str]:
        """(ids, text) of the prompt of a completion. Raises a 400 where it cannot fit or is not this model's."""
        tokenizer = self.loaded.tokenizer
        if isinstance(prompt, str):
            self.lengths.check([prompt], "prompt")
            return tuple(tokenizer(prompt)["input_ids"]), prompt
        if len(prompt) >= self.max_context:
            raise self.lengths.problem(len(prompt), "prompt")
        if max(prompt) >= len(tokenizer):
            raise bad_request(f"token {max(prompt)} is none of this model's {len(tokenizer)}", "prompt")
        return prompt, tokenizer.decode(prompt)

    async def _answer(self, call: _Call, session: AgentSession | None) -> Answer:
        requests = self._requests(call, session)
        drawn = await self._together([self._drawn(request, call) for request in requests])
        replies = tuple(of_one[-1].reply for of_one in drawn)
        if call.options.log_probs and any(reply.generation.log_probs is None for reply in replies):
            raise bad_request("this engine tells no log-probs", "logprobs", "unsupported_value")
        if session is not None:
            for of_one in drawn:
                for one in of_one:
                    sampling, sent = one.request.sampling, one is of_one[-1]
                    info = {"temperature": sampling.temperature, "top_p": sampling.top_p, **call.note, **one.note}
                    info |= {} if sent else {"sent": False}
                    session.add(call.prompt, one.reply, info, one.request.session_id or "", sent=sent)
        return Answer(call.prompt.ids, replies)

    def _requests(self, call: _Call, session: AgentSession | None) -> list[GenerationRequest]:
        """One request for each choice, with a seed and a cache of its own."""
        prompt, options = call.prompt, call.options
        room = self.max_context - len(prompt.ids)
        if room < 1:
            raise self.lengths.problem(len(prompt.ids), call.param)
        fixed = session.sampling if session is not None else None
        vocabulary = len(self.loaded.tokenizer)
        if (highest := max(options.fields.get("stop_token_ids", ()), default=0)) >= vocabulary:
            raise bad_request(f"token {highest} is none of this model's {vocabulary}", "stop_token_ids")
        sampling = options.sampling(self.sampling, fixed)
        stops = tuple(token for word in options.stop for token in self._single_token(word))
        sampling = replace(
            sampling,
            max_tokens=min(sampling.max_tokens, room),
            stop_token_ids=(*sampling.stop_token_ids, *stops),
            seed=sampling.seed if session is None else session.draw_seed(prompt, sampling.seed),
        )
        requests = []
        for choice in range(options.choices):
            seed = sampling.seed if choice == 0 or sampling.seed is None else derive_seed(sampling.seed, choice)
            cache = None if session is None else session.cache_for(prompt)
            choice_sampling = replace(sampling, seed=seed)
            requests.append(GenerationRequest(prompt.ids, prompt.images, choice_sampling, cache, prompt.messages))
        return requests

    async def _drawn(self, request: GenerationRequest, call: _Call) -> list[_Drawn]:
        """Return the replies to one request: the last is what the client gets, one before it was not as it is
        wanted."""
        first = _Drawn(request, self._read(call, await self._generate(request, call)))
        missed = call.choice.missed(first.reply)
        if missed is None:
            return [first]
        opening = call.choice.opening(first.reply, self.parser) if self.engine.takes_weights else ""
        again, ids = self._again(request, call, opening)
        if again is None:
            return [first.short_of(missed)]
        generation = await self._generate(again, call)
        reply = replace(self._read(call, generation, opening), opening_ids=ids)
        second = _Drawn(again, reply, {"given": opening} if opening else {})
        lacks = call.choice.missed(second.reply)
        return [first.short_of(missed), second if lacks is None else second.short_of(lacks)]

    def _again(
        self, request: GenerationRequest, call: _Call, opening: str
    ) -> tuple[GenerationRequest | None, tuple[int, ...]]:
        """Return (the request for another reply, which begins with `opening`; the ids of that). None: it would be the
        same."""
        sampling = request.sampling
        seed = None if sampling.seed is None else derive_seed(sampling.seed, "again")
        ids = (
            tuple(call.chat.beginning(opening, self.parser.control_words)) if opening and call.chat is not None else ()
        )
        room = self.max_context - len(request.prompt_ids) - len(ids)
        if room < 1 or (sampling.temperature == 0 and not ids):
            return None, ()
        sampling = replace(sampling, seed=seed, max_tokens=min(sampling.max_tokens, room))
        # as messages, a prompt that ends with the beginning of its own reply cannot be said
        messages = () if ids else request.messages
        return replace(request, prompt_ids=request.prompt_ids + ids, sampling=sampling, messages=messages), ids

    async def _together(self, work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Return what all of `work` returns; where one raises or the caller goes away, the others are cancelled."""
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _generate(self, request: GenerationRequest, call: _Call) -> Generation:
        """Return what the engine samples. Raises a 400 where the client asked what this engine cannot do."""
        try:
            generation = await self.engine.generate(request)
        except PromptTooLong as error:
            raise bad_request(str(error), call.param, TOO_LONG) from error
        except SamplingRefused as error:
            if call.options.fields.get("temperature") != request.sampling.temperature:
                raise  # whoever runs the endpoint said so
            raise bad_request(str(error), "temperature", "unsupported_value") from error
        if generation.finish_reason == "abort":
            raise EngineFailure("the engine gave the reply up before its end")
        self.loaded.check_sampled(generation.token_ids)
        return generation

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if self._pending >= self.max_pending:
            raise APIProblem(
                429,
                f"{self._pending} calls are on their way, which is the limit; try again",
                code="overloaded",
                retry=True,
            )
        self._pending += 1
        try:
            yield
        finally:
            self._pending -= 1

    def _check_pictures(self, call: ChatCall) -> None:
        """Raise a 400 for pictures that the model cannot see, before anything is rendered."""
        for i, message in enumerate(call.messages):
            if message.message.images and self.loaded.vision is None:
                raise bad_request(f"{self.loaded.name} is a text model and sees no pictures", f"messages[{i}].content")

    def _single_token(self, word: str) -> tuple[int, ...]:
        """Return the token that is `word`, so that the engine stops there at once; empty: it takes several."""
        if word not in self._stop_ids:
            ids = tuple(self.loaded.tokenizer(word, add_special_tokens=False)["input_ids"])
            if len(self._stop_ids) > 4096:
                self._stop_ids.clear()
            self._stop_ids[word] = ids if len(ids) == 1 else ()
        return self._stop_ids[word]

    def _read(self, call: _Call, generation: Generation, opening: str = "") -> Reply:
        """Return the reply that was sampled behind `opening`."""
        cut, text = cut_at_stop(generation, call.decode, call.options.stop)
        ended = cut.finish_reason == "stop" and bool(cut.token_ids) and cut.token_ids[-1] in self.loaded.end_ids
        if call.parser is None:
            return text_reply(cut, opening + text, ended)
        return tool_reply(cut, opening + text, ended, call.parser, call.offered, call.prompt.ids)


def _size_of(call: ChatCall) -> int:
    """Return what the work on a call grows with. A picture may be as large as it likes in few bytes, and a message of
    few characters costs as much as many: its key has its role and its calls too."""
    if any(message.message.images for message in call.messages):
        return SMALL + 1
    return len(call.tools_key) + sum(len(message.key) for message in call.messages)

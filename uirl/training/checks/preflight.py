"""`uirl check`: proves in seconds, on the real model and environment, what silently ruins runs."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from uirl.config import ConfigStore, InferenceConfig
from uirl.environments import BaseEnvironment, check_environment
from uirl.errors import ContractError, EngineFailure, UirlError
from uirl.inference.base import Generation, GenerationRequest, InferenceEngine, SamplingParams
from uirl.inference.models.loading import LoadedModel
from uirl.inference.models.precision import dtype_of
from uirl.learner import Learner, Policy, load_checkpoint, save_checkpoint
from uirl.rollout.players import Order
from uirl.rollout.samples import samples_of_all
from uirl.runtime.event_loop import EventLoopThread
from uirl.success import is_silent, settle_outcomes
from uirl.thoughts import split_thought
from uirl.training.assembly import Assembly, assemble
from uirl.training.channels.base import TRAINING
from uirl.training.channels.choose import open_channel
from uirl.training.checks import Finding
from uirl.training.checks.agreement import TOLERANCE, check_learned, gap_of, update_reaches_engine
from uirl.training.checks.environment import check_tasks
from uirl.training.plan import settle
from uirl.training.record.progress import doing
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Sample, Trajectory


def rounding_of(terms: int, dtype: torch.dtype) -> float:
    """Return how far, relative to its size, a sum of `terms` numbers may depend on the order of adding: threads and
    vector units add in pairs, and each of the log2(terms) levels of pairs rounds once."""
    return math.log2(max(terms, 2)) * torch.finfo(dtype).eps


def same_metrics(ours: Mapping[str, float], theirs: Mapping[str, float], rounding: float) -> bool:
    """Return whether two steps report the same numbers but for a relative `rounding`."""
    return ours.keys() == theirs.keys() and all(
        math.isclose(value, theirs[name], rel_tol=rounding) for name, value in ours.items()
    )


def same_next_step(saved: Learner, loaded: Learner, samples: Sequence[Sample]) -> tuple[bool, str]:
    """Take one step on `samples` with each and return (whether both are the same but for rounding; in words).

    Weights are compared by their distance, relative to the length of the step. Adam divides a gradient by its size:
    where a weight's gradient is rounding alone, so is the direction of its step, up to its whole length. That is a
    share of about `rounding` of the weights, and thus sqrt(rounding) of the distance.
    """
    weights = [weight for _, weight in saved.policy.named_trainable()]
    rounding = rounding_of(sum(weight.numel() for weight in weights), weights[0].dtype)
    ours = saved.supervised(samples)
    step = _distance(saved, loaded)
    theirs = loaded.supervised(samples)
    gap = _distance(saved, loaded)
    stored = torch.finfo(weights[0].dtype).eps * math.hypot(*(float(weight.detach().norm()) for weight in weights))
    if not same_metrics(ours, theirs, rounding):
        return False, f"{ours} became {theirs}, tolerated {rounding:.1e} of each"
    if not gap <= math.sqrt(rounding) * step + stored:
        return False, f"a step of length {step:.3g} became one that ends {gap:.3g} away, though both report {ours}"
    if gap == 0 and ours == theirs:
        return True, "a loaded checkpoint takes the same next step, to the last digit"
    return True, f"a loaded checkpoint takes the same next step but for rounding, tolerated {rounding:.1e}"


def _distance(one: Learner, other: Learner) -> float:
    """Return the Euclidean distance between the weights that two learners train."""
    pairs = zip(one.policy.named_trainable(), other.policy.named_trainable(), strict=True)
    return math.hypot(*(float(torch.dist(a.detach(), b.detach())) for (_, a), (_, b) in pairs))


REMEDY = "set inference.sleep=off, or run the engine on a GPU of its own (inference.server_url)"


async def check_sleep(parts: Assembly, played: Sequence[Trajectory]) -> list[Finding]:
    """Return what each check found; nothing where the engine does not sleep.

    An update is taken while it sleeps. Afterwards its log-probs are those of the learner's new weights, which they are
    not where old weights woke up, where the weights under adapters were lost, or where only a part was loaded again.
    And its memory was free while the learner worked, and holds everything once again.
    """
    if not parts.engine.sleeps:
        return []
    try:
        ok, detail = await update_reaches_engine(parts, played, asleep=True)
    except EngineFailure as error:  # it does not wake up, or its lost weights make NaN
        ok, detail = False, str(error)
    found = [Finding("weights after a sleep of the engine", ok, detail if ok else f"{detail}; {REMEDY}")]
    if not ok:
        return found
    footprint, what = parts.engine.footprint, "memory of a sleep of the engine"
    if footprint is None:
        return [*found, Finding(what, True, "not measured: the engine does not tell what it holds")]
    problems = "; ".join(footprint.problems())
    return [*found, Finding(what, not problems, f"{problems}; {REMEDY}" if problems else str(footprint))]


REPLY = 16
UNKNOWN = 512
"""Tokens that are tried where the config names no window."""
WORK = {"cpu": 2e12, "cuda": 4e14}
"""Floating point operations that a check may cost: some ten seconds."""


@dataclass(frozen=True, slots=True)
class LongGap:
    """What was found."""

    gap: float
    """Largest |engine - the model's own forward| log-prob."""
    tokens: int
    window: int
    """Largest window or chunk of a layer; 0: every layer sees all."""

    def __str__(self) -> str:
        text = f"largest difference {self.gap:.1e} over {self.tokens} tokens"
        if not self.window:
            return text
        if self.tokens > self.window:
            return f"{text}, more than the window of {self.window}"
        return f"{text}; a sequence beyond the window of {self.window} would take too long here"


async def long_gap(engine: InferenceEngine, loaded: LoadedModel, settings: InferenceConfig) -> LongGap | None:
    """Return the engine, in two turns, against the model's own forward under its own masks, on one sequence longer than
    its windows or as long as the context allows cheaply. None: the engine tells no log-probs."""
    try:
        window = loaded.attention_spans().largest
    except ContractError:
        window = 0  # an engine with masks of its own knows better
    ids = _tokens(loaded, _length(loaded, settings.max_context, window))
    sampling = SamplingParams(REPLY, settings.temperature or 1.0, seed=1)
    half = await engine.generate(GenerationRequest(ids[: len(ids) // 2], (), sampling, "long"))
    whole = await engine.generate(GenerationRequest(ids, (), sampling, "long"))
    engine.release("long")
    if half.log_probs is None or whole.log_probs is None:
        return None
    gaps = []
    for prompt, reply in ((ids[: len(ids) // 2], half), (ids, whole)):
        expected = _own_log_probs(loaded, (*prompt, *reply.token_ids), len(reply.token_ids), sampling.temperature)
        gaps.append(float((expected - torch.tensor(reply.log_probs or ())).abs().max()))
    return LongGap(max(gaps), len(ids), window)


def _length(loaded: LoadedModel, max_context: int | None, window: int) -> int:
    positions = loaded.max_positions
    context = min(positions, max_context or positions) - REPLY
    weights = sum(parameter.numel() for parameter in loaded.model.parameters())
    cheap = int(WORK.get(loaded.device.type, 2e12) / (8 * weights))
    return max(2, min(context, 3 * window or UNKNOWN, cheap))


def _tokens(loaded: LoadedModel, length: int) -> tuple[int, ...]:
    """Return the ids that differ from their neighbours, so that it matters which of them a layer sees."""
    never = {*loaded.banned_ids, *loaded.end_ids}
    plain = [i for i in range(len(loaded.tokenizer)) if i not in never]
    return tuple(plain[(7919 * i + i * i) % len(plain)] for i in range(length))


@torch.no_grad()
def _own_log_probs(loaded: LoadedModel, ids: tuple[int, ...], length: int, temperature: float) -> Tensor:
    """Return what the model's own forward says of the last `length` tokens, [length]."""
    tokens = torch.tensor([ids], device=loaded.device)
    logits = loaded.model(input_ids=tokens, use_cache=False).logits[0, -length - 1 : -1].float()
    banned = torch.tensor(loaded.banned_ids, device=loaded.device, dtype=torch.long)
    log_probs = (logits.index_fill(-1, banned, float("-inf")) / temperature).log_softmax(-1)
    return log_probs.gather(-1, tokens[0, -length:, None])[:, 0].cpu()


LONG_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.5}
"""The same over a sequence of thousands of tokens, against another kernel."""


_Found = Callable[[Finding], None]


def preflight(
    config: ConfigStore, environment: BaseEnvironment | None = None, tell: Callable[[Finding], None] | None = None
) -> list[Finding]:
    """Return what was found, in order; a check that cannot run because an earlier one failed is left out.

    `tell` hears of each as it is found: a slow page or a large model takes minutes.
    """
    findings: list[Finding] = []

    def found(finding: Finding) -> None:
        findings.append(finding)
        if tell is not None:
            tell(finding)

    if environment is not None:
        config = config.model_copy(deep=True)
        config.environment.note_object(environment)
    try:
        with doing("the check of the config and the model"):
            config = settle(config.check(training=True)).config.check(training=True)
            parts = assemble(config, environment, for_training=True)
    except UirlError as error:
        found(Finding("config and model", False, str(error)))
        return findings
    loop = EventLoopThread()
    try:
        _check_model(parts, found)
        with doing("the check of the environment"):
            fits = _check_environment(parts, found)
        if fits:
            with doing("the check of the tasks"):
                for finding in loop.run(check_tasks(parts)):
                    found(finding)
        with doing("the check of episodes"):
            loop.run(_check_episodes(parts, found))
    finally:
        loop.close()
    return findings


def _check_model(parts: Assembly, found: _Found) -> None:
    loaded = parts.learner.policy.loaded
    count = sum(p.numel() for p in loaded.model.parameters())
    detail = f"{loaded.name}, {count / 1e6:.2f} M parameters, {loaded.dtype} on {loaded.device}"
    found(Finding("config and model", True, detail))
    way = "messages are appended" if parts.chat.incremental else "the template rewrites history: one sample per turn"
    shown = "every role comes back, once and in order"
    pictures = [] if loaded.vision is None or parts.chat.dialect.pictures else ["it drops pictures"]
    found(Finding("chat template", True, "; ".join([shown, way, *parts.chat.notes(), *pictures])))


def _check_environment(parts: Assembly, found: _Found) -> bool:
    try:
        tasks = None if parts.tasks.of_environment else parts.tasks.train
        report = check_environment(parts.environment.spawn(), tasks=tasks, seed=parts.config.training.seed)
        seeds = "seeds reproduce" if report.seeded else "takes no seed"
        notes = "".join(f"; {note}" for note in report.notes)
        detail = f"{report.environment}: {report.episodes} episodes, {report.turns} turns, {seeds}{notes}"
        found(Finding("environment", True, detail))
    except UirlError as error:
        found(Finding("environment", False, str(error)))
        return False
    return True


async def _check_episodes(parts: Assembly, found: _Found) -> None:
    source = UniformTasks(parts.tasks.train, seed=parts.config.training.seed, split="check")
    specs = [spec for group in source.groups(4, 2) for spec in group]
    requests = _record_requests(parts)
    try:
        try:
            async with open_channel(parts) as channel:
                played = (await channel.player(TRAINING).collect(specs))[: len(specs)]
                shown = await channel.player(Order(expert=True)).collect(specs[:2]) if parts.warm_starts else []
        except UirlError as error:  # actors that do not start, an engine without log-probs
            found(Finding("episodes", False, str(error)))
            return
        usable = [t for t in played if t.failure is None]
        found(_episodes_finding(played))
        if not usable:
            return
        found(_success_finding(usable, shown))
        found(_token_identity(parts, usable, requests))
        found(_control_words(parts, requests))
        for finding in check_learned(parts, usable):
            found(finding)
        found(_log_prob_agreement(parts, usable))
        found(await _long_sequences(parts))
        found(await _update_reaches_engine(parts, usable))
        for finding in await check_sleep(parts, usable):
            found(finding)
        found(_resume(parts, samples_of_all(usable)))
    finally:
        await parts.close()


def _record_requests(parts: Assembly) -> dict[str, list[GenerationRequest]]:
    """Return a mapping of session id -> requests, which fills with what the engine is really asked from now on."""
    requests: dict[str, list[GenerationRequest]] = defaultdict(list)
    generate = parts.engine.generate

    async def recorded(request: GenerationRequest) -> Generation:
        requests[request.session_id or ""].append(request)
        return await generate(request)

    parts.engine.generate = recorded  # type: ignore[method-assign]
    return requests


def _episodes_finding(played: Sequence[Trajectory]) -> Finding:
    failures = [t.failure for t in played if t.failure is not None]
    if failures:
        return Finding("episodes", False, f"{len(failures)} of {len(played)} failed; the first: {failures[0].message}")
    turns = sum(len(t) for t in played) / len(played)
    rewards = sorted({round(t.total_reward(), 3) for t in played})
    return Finding("episodes", True, f"{len(played)} played, {turns:.1f} turns, rewards {rewards[:5]}")


def _success_finding(played: Sequence[Trajectory], shown: Sequence[Trajectory]) -> Finding:
    """Say who says whether the episodes `played` are solved; `shown` are demonstrations, which may tell more."""
    silent = [t for t in played if is_silent(t)]
    ends = ", ".join(sorted({str(t.stop_reason) for t in silent}))
    settle_outcomes([*played, *shown], set())
    judged = f"{sum(t.success is not None for t in played)} of {len(played)} judged"
    if not silent:
        return Finding("success", True, judged)
    if any(t.success is None for t in silent):
        told = f"{judged}; of {len(silent)} nobody says whether they are solved, so the reward is reported in its place"
        return Finding("success", True, f"{told}, unless the environment says info['success'] of later ones")
    return Finding(
        "success",
        True,
        f"{judged}; {len(silent)} ended ({ends}) without a word, though the environment says info['success'] of "
        "others: these count as not solved; say it at every step, if some of them are (docs/verification.md)",
    )


def _token_identity(
    parts: Assembly, played: Sequence[Trajectory], requests: dict[str, list[GenerationRequest]]
) -> Finding:
    turns, what = 0, "token identity"
    for trajectory in played:
        ids: list[int] = []
        # the last reply may have been cut off by a limit of the run, and is no turn
        fed = requests[trajectory.id][: len(trajectory.turns)]
        for turn, request in zip_longest(trajectory.turns, fed):
            ids = list(turn.context_ids) if turn.starts_segment else ids + list(turn.context_ids)
            where = f"turn {len(ids)} of {trajectory.id}"
            if request is None or request.prompt_ids != tuple(ids):
                return Finding(what, False, f"the recorded tokens are not what the engine was fed: {where}")
            if not turn.starts_segment and not _follows(parts, turn.context_ids, request):
                problem = "what a reply is followed by is not what the chat template writes there"
                return Finding(what, False, f"{problem}: {where}")
            ids += turn.response_ids
            turns += 1
    again = "" if turns > len(played) else "; no episode had a second turn, so nothing was fed again"
    return Finding(what, True, f"what is recorded is what the engine was fed, in {turns} turns{again}")


def _follows(parts: Assembly, added: tuple[int, ...], request: GenerationRequest) -> bool:
    """Return whether a rendering of the whole conversation has behind a reply the tokens that were `added` there, and
    one end token between the two: the reply's own, or the first of these. True where a rendering cannot tell."""
    chat, ends = parts.chat, parts.learner.policy.loaded.end_ids
    at = max((i for i, message in enumerate(request.messages) if message.role == "assistant"), default=-1)
    try:
        whole = tuple(chat.whole(request.messages))
        closing = {token for token in ends if chat.closes(token, request.messages[at + 1 :])}
    except UirlError:
        return True  # what the policy said cannot be written by the template, and is never rendered whole
    if not closing or not split_thought(request.messages[at].text)[1].strip():
        return True  # no end token is written there; some templates leave out a reply without words
    reply = request.prompt_ids[: len(request.prompt_ids) - len(added)]
    if reply[-1:] and reply[-1] in closing:
        return whole[-len(added) - 1 :] == (reply[-1], *added)
    # letters of the reply may merge with what stands before the end token, and with nothing behind it
    end = next((i for i, token in enumerate(added) if token in closing), None)
    if end is None or whole[end - len(added) :] != added[end:]:
        return False
    return end < len(chat.controls.encode(chat.end_text)) or not chat.decode(added[:end]).strip()


def _control_words(parts: Assembly, requests: dict[str, list[GenerationRequest]]) -> Finding:
    """Return which control tokens are spelled by what the policy is shown, and where the first stands."""
    shown = [("the tools", json.dumps(parts.environment.tool_schemas(), ensure_ascii=False))]
    for message in (m for sent in requests.values() for request in sent for m in request.messages):
        if message.role != "assistant":
            shown.append((f"a {message.role} message", message.text))
    found: dict[str, str] = {}
    for where, text in shown:
        for word in parts.chat.controls.found_in(text):
            at = text.index(word)
            found.setdefault(word, f"{word} in {where}, after {text[max(0, at - 20) : at]!r}")
    if not found:
        return Finding("control tokens in content", True, "none")
    places = "; ".join(found[word] for word in sorted(found)[:5])
    detail = f"{places}: the policy reads letters, not control tokens; they are the chat template's alone"
    return Finding("control tokens in content", True, detail)


def _log_prob_agreement(parts: Assembly, played: Sequence[Trajectory]) -> Finding:
    samples = samples_of_all(played)
    gap, turn = gap_of(parts.learner.policy, parts.images, samples, parts.config.inference.temperature)
    tolerance = TOLERANCE[dtype_of(parts.config.model)]
    detail = f"largest difference {gap:.1e} (turn {turn}), tolerated {tolerance:g}"
    inference = parts.config.inference
    if inference.filtered:
        detail = "not compared: top-p or top-k filter the engine's distribution; the learner recomputes its own"
        return Finding("engine and learner agree", True, detail)
    return Finding("engine and learner agree", gap <= tolerance, detail)


async def _long_sequences(parts: Assembly) -> Finding:
    """Return whether windows and chunks of the model reach the engine: short episodes never meet them."""
    what = "long sequences"
    inference = parts.config.inference
    if inference.filtered:
        return Finding(what, True, "not compared: top-p or top-k filter the engine's distribution")
    found = await long_gap(parts.engine, parts.learner.policy.loaded, parts.config.inference)
    if found is None:
        return Finding(what, True, "not compared: the engine tells no log-probs")
    tolerance = LONG_TOLERANCE[dtype_of(parts.config.model)]
    if found.gap <= tolerance:
        return Finding(what, True, f"{found}, tolerated {tolerance:g}")
    why = "the engine attends, or counts positions, differently from the model's own forward"
    return Finding(what, False, f"{found}, tolerated {tolerance:g}: {why}; use another inference.backend")


async def _update_reaches_engine(parts: Assembly, played: Sequence[Trajectory]) -> Finding:
    what = (
        "an adapter update reaches the engine" if parts.config.model.use_lora else "a weight update reaches the engine"
    )
    return Finding(what, *await update_reaches_engine(parts, played))


def _resume(parts: Assembly, samples: Sequence[Sample]) -> Finding:
    """Save, load into a second learner, and compare one further step of both."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint_0"
        try:
            save_checkpoint(path, parts.learner, {})
            twin = Learner(Policy.from_config(parts.config), parts.config, parts.images)
            load_checkpoint(path, twin)
        except UirlError as error:
            return Finding("resume", False, str(error))
        return Finding("resume", *same_next_step(parts.learner, twin, samples))

"""`uirl check`: proves in seconds, on the real model and environment, what silently ruins runs."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uirl.config import ConfigStore
from uirl.environments import BaseEnvironment, check_environment
from uirl.errors import UirlError
from uirl.inference.base import Generation, GenerationRequest
from uirl.inference.models.precision import dtype_of
from uirl.learner import Learner, Policy, load_checkpoint, save_checkpoint
from uirl.rollout.players import Order
from uirl.rollout.samples import samples_of_all
from uirl.runtime.event_loop import EventLoopThread
from uirl.success import is_silent, settle_outcomes
from uirl.training.assembly import Assembly, assemble
from uirl.training.channels.base import TRAINING
from uirl.training.channels.choose import open_channel
from uirl.training.checks.agreement import TOLERANCE, gap_of, update_reaches_engine
from uirl.training.checks.environment import check_tasks
from uirl.training.checks.long_context import long_gap
from uirl.training.checks.resumed import same_next_step
from uirl.training.checks.sleep import check_sleep
from uirl.training.plan import settle
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Sample, Trajectory

LONG_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.5}
"""The same over a sequence of thousands of tokens, against another kernel."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check, in plain words."""

    what: str
    ok: bool
    detail: str


def preflight(config: ConfigStore, environment: BaseEnvironment | None = None) -> list[Finding]:
    """Return what was found, in order; a check that cannot run because an earlier one failed is left out."""
    if environment is not None:
        config = config.model_copy(deep=True)
        config.environment.note_object(environment)
    findings: list[Finding] = []
    loop = EventLoopThread()
    try:
        parts = _build(config, environment, findings)
        if parts is not None:
            _check_environment(parts, findings)
            if findings[-1].ok:
                findings += [Finding(*found) for found in loop.run(check_tasks(parts))]
            loop.run(_check_episodes(parts, findings))
    finally:
        loop.close()
    return findings


def _build(config: ConfigStore, environment: BaseEnvironment | None, findings: list[Finding]) -> Assembly | None:
    try:
        config = settle(config.check(training=True)).config.check(training=True)
        parts = assemble(config, environment, for_training=True)
    except UirlError as error:
        findings.append(Finding("config and model", False, str(error)))
        return None
    loaded = parts.learner.policy.loaded
    count = sum(p.numel() for p in loaded.model.parameters())
    detail = f"{loaded.name}, {count / 1e6:.2f} M parameters, {loaded.dtype} on {loaded.device}"
    findings.append(Finding("config and model", True, detail))
    way = "messages are appended" if parts.chat.incremental else "the template rewrites history: one sample per turn"
    shown = "every role comes back, once and in order"
    pictures = [] if loaded.vision is None or parts.chat.dialect.pictures else ["it drops pictures"]
    findings.append(Finding("chat template", True, "; ".join([shown, way, *parts.chat.notes(), *pictures])))
    return parts


def _check_environment(parts: Assembly, findings: list[Finding]) -> None:
    try:
        report = check_environment(parts.environment.spawn(), seed=parts.config.training.seed)
        seeds = "seeds reproduce" if report.seeded else "takes no seed"
        notes = "".join(f"; {note}" for note in report.notes)
        detail = f"{report.environment}: {report.episodes} episodes, {report.turns} turns, {seeds}{notes}"
        findings.append(Finding("environment", True, detail))
    except UirlError as error:
        findings.append(Finding("environment", False, str(error)))


async def _check_episodes(parts: Assembly, findings: list[Finding]) -> None:
    source = UniformTasks(parts.tasks.train, seed=parts.config.training.seed, split="check")
    specs = [spec for group in source.groups(4, 2) for spec in group]
    requests = _record_requests(parts)
    try:
        try:
            async with open_channel(parts) as channel:
                played = (await channel.player(TRAINING).collect(specs))[: len(specs)]
                shown = await channel.player(Order(expert=True)).collect(specs[:2]) if parts.warm_starts else []
        except UirlError as error:  # actors that do not start, an engine without log-probs
            findings.append(Finding("episodes", False, str(error)))
            return
        usable = [t for t in played if t.failure is None]
        findings.append(_episodes_finding(played))
        if not usable:
            return
        findings.append(_success_finding(usable, shown))
        findings.append(_token_identity(usable, requests))
        findings.append(_control_words(parts, requests))
        findings.append(_log_prob_agreement(parts, usable))
        findings.append(await _long_sequences(parts))
        findings.append(await _update_reaches_engine(parts, usable))
        findings += [Finding(*found) for found in await check_sleep(parts, usable)]
        findings.append(_resume(parts, samples_of_all(usable)))
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
        "others: these count as not solved; say it at every step, if some of them are (docs/success.md)",
    )


def _token_identity(played: Sequence[Trajectory], requests: dict[str, list[GenerationRequest]]) -> Finding:
    turns = 0
    for trajectory in played:
        ids: list[int] = []
        for turn, request in zip(trajectory.turns, requests[trajectory.id], strict=True):
            ids = list(turn.context_ids) if turn.starts_segment else ids + list(turn.context_ids)
            if request.prompt_ids != tuple(ids):
                where = f"turn {len(ids)} of {trajectory.id}"
                return Finding("token identity", False, f"the recorded tokens are not what the engine was fed: {where}")
            ids += turn.response_ids
            turns += 1
    return Finding("token identity", True, f"what is recorded is what the engine was fed, in {turns} turns")


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
    gap, turn = gap_of(parts, samples)
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
    found = await long_gap(parts.engine, parts.learner.policy.loaded, parts.config)
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

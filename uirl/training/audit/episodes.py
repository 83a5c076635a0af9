"""Stored episodes: whether each agrees with itself, with the prompts that its run would make, and with a replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from uirl.environments import BaseEnvironment
from uirl.environments.session import EnvironmentSession
from uirl.errors import EngineFailure
from uirl.images import ImageStore, Screenshot
from uirl.inference.base import SamplingParams
from uirl.inference.messages import Message
from uirl.inference.models.loading import LoadedModel
from uirl.parsers import create_parser
from uirl.rollout.collector import chat_for
from uirl.rollout.conversation import Context, Conversation, style_of
from uirl.rollout.episode import Agent, EpisodeLimits, EpisodeOptions, EpisodeSpec, Response, run_episode
from uirl.rollout.replay import ReplayAgent
from uirl.storage.records import as_stored
from uirl.storage.summaries import TrajectorySummary
from uirl.success import UNSAID
from uirl.training.audit.report import AuditReport
from uirl.types import Observation, Trajectory, Turn

CUT = ("token_budget", "wall_time")
"""Ends that a replay does not meet: it takes other time, and counts no tokens."""


class EpisodeAudit:
    """Looks at the episodes of one environment."""

    def __init__(
        self,
        report: AuditReport,
        environment: BaseEnvironment,
        loaded: LoadedModel,
        options: EpisodeOptions,
        sampling: SamplingParams,
        *,
        judged: bool,
        waits: tuple[float, float],
    ) -> None:
        """Prepare it; `sampling`: of its episodes. `judged`: somebody who is not asked again gave their rewards.
        `waits`: seconds that a step and a reset take at most."""
        self._report, self.environment, self._options = report, environment, options
        self._chat, self._ends = chat_for(loaded, environment), set(loaded.end_ids)
        self._sampling, self._judged, self._waits = sampling, judged, waits
        self._not_alone: set[str] = set()
        """Tasks whose episodes wait for another one, as where a policy plays itself."""
        self._parser = create_parser(environment.action_format).for_tools(environment.callable_tools())
        prefix = options.system_prompt
        self._prefix = environment.get_prompt_prefix() if prefix is None else prefix
        self.images = ImageStore()

    def agrees_with_itself(self, line: TrajectorySummary, one: Trajectory, speakers: set[str]) -> None:
        """Compare what an episode says several times: in its columns, numbers, tokens, texts and pictures."""
        where, same = f"episode {line.id}", self._report.same
        row = TrajectorySummary.of(one, line.step, line.split, speakers)
        same("columns of episodes", f"{where}, its row", line, replace(row, created=line.created))
        if one.failure is not None or not one.turns:
            same("ends of episodes", f"{where}, stop_reason", one.stop_reason, "failure")
            return
        last, metrics = one.turns[-1], one.metrics
        same("ends of episodes", f"{where}, stop_reason", one.stop_reason, _why(one, last, self._limit()))
        done = [turn.done for turn in one.turns[:-1]]
        same("ends of episodes", f"{where}, an end before its last turn", any(done), False)
        tokens = sum(len(turn.response_ids) for turn in one.turns)
        same("numbers of episodes", f"{where}, response_tokens", metrics.get("response_tokens"), tokens)
        if one.sampling is not None:
            names = ("temperature", "top_p", "top_k", "max_tokens")
            again = {name: getattr(self._sampling, name) for name in names} | {"seed": one.sampling.get("seed")}
            same("numbers of episodes", f"{where}, sampling", one.sampling, again)
        errors = sum(turn.action.parse_error is not None for turn in one.turns)
        same("numbers of episodes", f"{where}, parse_errors", metrics.get("parse_errors"), errors)
        said = [turn.info["success"] for turn in one.turns if turn.info.get("success") is not None]
        if UNSAID not in metrics:
            same("successes", f"{where}, success", metrics.get("success"), float(said[-1]) if said else None)
        if one.verdict is not None:
            same("successes", f"{where}, its score", one.total_reward(), one.verdict.score)
        following = [*(turn.observation for turn in one.turns[1:]), one.final or Observation()]
        for index, (turn, after) in enumerate(zip(one.turns, following, strict=True)):
            self._reply(f"{where}, turn {index}", turn)
            # an environment that is scored at its end adds to the notes of the last turn
            if turn is not last or not self.environment.scored_at_end:
                told = (turn.info, turn.tool_results), (after.info, after.tool_results)
                same("answers", f"{where}, notes and results of turn {index}, and as seen in the next", *told)
        for picture in _pictures(one):
            same("pictures", f"{where}, a picture", picture.hash, Screenshot(picture.data).hash)
            self.images.put(picture)

    def prompts(self, one: Trajectory) -> None:
        """Render the prompts of an episode anew, of what it saw and said, and compare their tokens."""
        conversation = Conversation(self._chat, self._options.window, style_of(self.environment.message_style))
        if self._prefix:
            conversation.add(Message("system", self._prefix))
        for index, turn in enumerate(one.turns):
            conversation.observe(turn.observation)
            context = conversation.context()
            stored = (turn.starts_segment, turn.context_ids, turn.context_images)
            again = (context.starts_segment, context.new_ids, tuple(image.hash for image in context.new_images))
            self._report.same("prompts", f"episode {one.id}, prompt of turn {index}", stored, again)
            conversation.reply(turn.response_ids, self._text(turn), ended=turn.finish_reason == "stop")

    async def replay(self, one: Trajectory) -> None:
        """Play an episode again, reply for reply, and compare everything but what clocks say."""
        if one.task.id in self._not_alone:
            return
        limits = EpisodeLimits(len(one.turns) if one.stop_reason in CUT else self._options.limits.max_turns)
        options = replace(self._options, limits=limits)
        spec = EpisodeSpec(one.task, one.seed, None, one.id, one.group_id, one.level)
        session = EnvironmentSession(self.environment.spawn(), *self._waits)
        agent = ReplayAgent(one.turns, _NoMore())
        parser = create_parser(self.environment.action_format)
        try:
            again = await run_episode(session, agent, self._chat, parser, spec, images=self.images, options=options)
        finally:
            if not session.broken:
                await session.close()
        if again.failure is not None and again.failure.kind == "timeout":
            self._not_alone.add(one.task.id)
            self._report.unseen[f"replays of {one.task.id}"] = (
                f"alone, an episode does not go on: {again.failure.message}"
            )
            return
        stored, played = (_timeless(episode, one.stop_reason) for episode in (one, as_stored(again)))
        if self._judged:
            stored, played = ([turn | {"reward": 0.0} for turn in turns] for turns in (stored, played))
        for index in range(max(len(stored), len(played))):
            a, b = (turns[index] if index < len(turns) else None for turns in (stored, played))
            self._report.same("turns played again", f"episode {one.id}, played again, turn {index}", a, b)

    def _reply(self, where: str, turn: Turn) -> None:
        text = self._text(turn)
        ended = bool(turn.response_ids) and turn.response_ids[-1] in self._ends
        self._report.same("replies", f"{where}, finish_reason", turn.finish_reason == "stop", ended)
        self._report.same("replies", f"{where}, text", turn.action.text, text)
        again = self._parser.parse(text)
        same = (turn.action.tool_calls, turn.action.parse_error) == (again.tool_calls, again.parse_error)
        self._report.same("replies", f"{where}, the action read from its text", same, True)
        likely = [p for p in turn.rollout_log_probs if not p <= 1e-6]
        self._report.same("log-probs", f"{where}, log-probs above 0", likely, [])
        self._report.same("log-probs", f"{where}, log-probs", len(turn.rollout_log_probs), len(turn.response_ids))

    def _text(self, turn: Turn) -> str:
        return self._chat.decode(turn.response_ids)

    def _limit(self) -> int:
        return min(self._options.limits.max_turns, self.environment.max_turns or self._options.limits.max_turns)


class _NoMore(Agent):
    async def act(self, context: Context, session: EnvironmentSession, seed: int | None, max_tokens: int) -> Response:
        raise EngineFailure("the stored episode has no more turns, and the one that is played again goes on")


def _why(one: Trajectory, last: Turn, limit: int) -> str | None:
    if last.terminated:
        return "terminated"
    if last.truncated:
        return "max_turns" if last.info.get("out_of_turns") is True else "truncated"
    if len(one.turns) >= limit:
        return "max_turns"
    return one.stop_reason if one.stop_reason in (*CUT, "unshowable") else "an end that nothing explains"


def _pictures(one: Trajectory) -> list[Screenshot]:
    seen = [*(turn.observation for turn in one.turns), *([one.final] if one.final is not None else [])]
    return [picture for observation in seen for picture in observation.images if isinstance(picture, Screenshot)]


def _timeless(one: Trajectory, end: str | None) -> list[dict[str, Any]]:
    """Return of each turn what does not depend on clocks, and last how the episode ended."""
    turns: list[dict[str, Any]] = [
        {
            "seen": _seen(turn.observation),
            "prompt": (turn.context_ids, turn.context_images, turn.starts_segment),
            "action": turn.action,
            "reward": turn.reward,
            "end": (turn.terminated, turn.truncated),
            "info": turn.info,
        }
        for turn in one.turns
    ]
    said = None if one.final is None else _seen(one.final)
    ended = (end if end in CUT else one.stop_reason, one.metrics.get("success"), one.failure)
    return [*turns, {"seen": said, "ended": ended, "reward": 0.0}]


def _seen(observation: Observation) -> tuple[Any, ...]:
    pictures = [picture if isinstance(picture, str) else picture.hash for picture in observation.images]
    results = [(result.name, result.success, result.text) for result in observation.tool_results]
    return observation.text, pictures, results, observation.state_key, observation.info

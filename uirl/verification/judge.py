"""A multimodal model as judge: key points of the goal, key screenshots, then the verdict, by several votes.

The three steps are those of WebJudge [Online-Mind2Web, arXiv 2504.01382]; process apart from outcome, and what the
agent could not control apart from its mistakes, those of the Universal Verifier [arXiv 2604.06240].
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from uirl.errors import JudgeFailure
from uirl.images import Screenshot
from uirl.runtime.limits import InputError
from uirl.types import Trajectory
from uirl.verification.client import JudgeClient, judge_failure
from uirl.verification.evidence import Evidence
from uirl.verification.outcome import Finding, Outcome, Votes, count_votes, poll
from uirl.verification.prompts import (
    VERSION,
    Goal,
    Judgement,
    KeyPoints,
    Progress,
    Prompt,
    ScreenScores,
    ask_points,
    ask_progress,
    ask_screens,
    ask_verdict,
)

B = TypeVar("B", Judgement, Progress)
MOST_BYTES = 2**20
"""Of a picture that is sent as it was captured: six PNGs of 1280 x 1280 pixels may take 30 MB, as JPEG 2 MB."""


@dataclass(frozen=True, slots=True)
class ScreenLimits:
    """How many screenshots a judge sees, and of which size."""

    key: int = 6
    """With the verdict."""
    looked_at: int = 24
    """To choose the key ones from."""
    batch: int = 8
    """In one request of the choice."""
    size: int = 1280
    """Longest side of a key screenshot, in pixels."""
    thumbnail: int = 512
    """Longest side where they are chosen."""


@dataclass(frozen=True, slots=True)
class Screen:
    """One screenshot of an episode."""

    number: int
    """Turns before it, from 0."""
    image: Screenshot


@dataclass(slots=True)
class ScreenCounts:
    """What became of the screenshots of one episode."""

    taken: int = 0
    repeated: int = 0
    """The same picture as another one."""
    missing: int = 0
    """Not kept, or no picture."""
    left_out: int = 0
    """Never shown to the judge."""
    shrunk: int = 0
    """Shown with fewer pixels or, as JPEG, with fewer bytes."""


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """How a judge works."""

    votes: int = 1
    """Verdicts that are asked for; the majority counts. As soon as the rest can change nothing, it is not asked."""
    temperature: float = 0.7
    """Of the verdicts where there are several; a single one is greedy."""
    screens: ScreenLimits = field(default_factory=ScreenLimits)


@dataclass(frozen=True, slots=True)
class JudgeVerdict:
    """What a judge says of one episode."""

    outcome: Outcome
    """Unknown: it abstains."""
    reason: str
    votes: Votes
    process: float
    """How well the agent went about it, mean of the votes, in [0, 1]; part of no reward."""
    obstacle: str
    """What the agent could not control, by most votes: 'none', 'environment', 'task'."""
    screens: ScreenCounts

    @staticmethod
    def abstaining(reason: str) -> JudgeVerdict:
        """Return the verdict of a judge that says nothing about an episode."""
        return JudgeVerdict(Outcome.UNKNOWN, reason, Votes(), 0.0, "none", ScreenCounts())


class Judge:
    """Judges episodes by what their screenshots show."""

    def __init__(self, client: JudgeClient, options: JudgeOptions | None = None) -> None:
        """`options` None: the defaults."""
        self.client, self.options = client, options or JudgeOptions()

    @property
    def name(self) -> str:
        """Which judge this is: another model, another prompt or another number of votes is another one."""
        return f"{self.client.model}@{VERSION}x{self.options.votes}"

    async def judge(self, evidence: Evidence) -> JudgeVerdict:
        """Return the verdict on an episode. Raises JudgeFailure where the judge gave no answer that can be read."""
        record = evidence.trajectory
        goal = Goal.of(record)
        about = digest(record)
        points = (await self.client.ask(KeyPoints, ask_points(goal))).key_points
        counts = ScreenCounts()
        # decoding large pictures takes a second, in which no other episode should wait
        screens = await asyncio.to_thread(screens_of, evidence, self.options.screens, counts)
        key = await self._key_screens(goal, points, screens, counts, about)
        shown = await asyncio.to_thread(_all_shown, key, self.options.screens.size, counts)
        _require_some(shown, counts)
        prompt = ask_verdict(goal, points, record, [screen.number for screen, _ in shown])
        judgements = await self._poll(Judgement, prompt, [picture for _, picture in shown], about)
        return _verdict(judgements, counts)

    async def answers_about_beginning(self, evidence: Evidence) -> bool:
        """Return whether the judge answers, asked anew in the same form, about what no policy made: the goal and the
        screen on which the episode began. If it does, and not about the episode, what is in the episode is why."""
        begun = replace(evidence, trajectory=evidence.trajectory.prefix(0))
        goal, counts = Goal.of(evidence.trajectory), ScreenCounts()
        screens = await asyncio.to_thread(screens_of, begun, self.options.screens, counts)
        shown = await asyncio.to_thread(_all_shown, screens, self.options.screens.size, counts)
        try:
            points = (await self.client.ask(KeyPoints, ask_points(goal))).key_points
            prompt = ask_verdict(goal, points, begun.trajectory, [screen.number for screen, _ in shown])
            await self.client.ask(Judgement, prompt, [picture for _, picture in shown], fresh=True)
        except JudgeFailure:
            return False
        return True

    async def progress(self, evidence: Evidence) -> Finding:
        """Return whether all turns of the beginning of an episode were right; unknown: it abstains. Raises JudgeFailure
        where the judge gave no answer that can be read."""
        record, limits, counts = evidence.trajectory, self.options.screens, ScreenCounts()
        screens = await asyncio.to_thread(screens_of, evidence, limits, counts)
        newest = (limits.key + 1) // 2  # what the last steps did is seen there; of the way before it some pictures
        older = spaced(list(enumerate(screens[:-newest])), limits.key - newest) if limits.key > newest else []
        chosen = [screens[index] for index, _ in older] + screens[-newest:]
        shown = await asyncio.to_thread(_all_shown, chosen, limits.size, counts)
        _require_some(shown, counts)
        prompt = ask_progress(Goal.of(record), record, [screen.number for screen, _ in shown])
        said = await self._poll(Progress, prompt, [picture for _, picture in shown], digest(record))
        votes = count_votes([None if one is None else one.vote for one in said])
        readable = [one for one in said if one is not None]
        speaker = next((one for one in readable if one.vote is votes.outcome), readable[0])
        told = f"{speaker.reason} {speaker.mistakes}" if votes.outcome is Outcome.FAILED else speaker.reason
        return Finding(votes.outcome, told.strip())

    async def close(self) -> None:
        """Close the connections to the server, and the memory."""
        await self.client.close()

    async def _key_screens(
        self, goal: Goal, points: list[str], screens: list[Screen], counts: ScreenCounts, about: str
    ) -> list[Screen]:
        limits = self.options.screens
        if len(screens) <= limits.key:
            return screens
        scores: dict[int, int] = {}
        for start in range(0, len(screens), limits.batch):
            batch = screens[start : start + limits.batch]
            shown = await asyncio.to_thread(_all_shown, batch, limits.thumbnail, ScreenCounts())
            if shown:
                numbers = [screen.number for screen, _ in shown]
                prompt = ask_screens(goal, points, numbers)
                said = await self.client.ask(ScreenScores, prompt, [picture for _, picture in shown], about=about)
                scores |= {one.screen: one.score for one in said.scores if one.screen in numbers}
        key = key_screens(screens, scores, limits.key)
        counts.left_out += len(screens) - len(key)
        return key

    async def _poll(self, form: type[B], prompt: Prompt, pictures: list[bytes], about: str) -> list[B | None]:
        """Return the votes of this form. Raises JudgeFailure where none can be read."""
        temperature = self.options.temperature if self.options.votes > 1 else 0.0

        async def ask(number: int) -> B:
            return await self.client.ask(form, prompt, pictures, about=about, vote=number, temperature=temperature)

        return await poll(ask, self.options.votes)


def digest(trajectory: Trajectory) -> str:
    """Return what is equal only for episodes in which the same was asked, shown, said and done."""
    parts: list[Any] = [trajectory.task.goal, trajectory.task.id, trajectory.stop_reason]
    for turn in trajectory.turns:
        parts.append([turn.observation.text, [_hash(image) for image in turn.observation.images]])
        calls = [[call.name, repr(call.arguments)] for call in turn.action.tool_calls]
        parts.append([turn.action.text, calls, turn.action.parse_error])
    if trajectory.final is not None:
        parts.append([trajectory.final.text, [_hash(image) for image in trajectory.final.images]])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _hash(image: Any) -> str:
    return image if isinstance(image, str) else str(getattr(image, "hash", "") or repr(image))


def _all_shown(screens: list[Screen], size: int, counts: ScreenCounts) -> list[tuple[Screen, bytes]]:
    pairs = [(screen, shown_at(screen, size, counts)) for screen in screens]
    return [(screen, picture) for screen, picture in pairs if picture is not None]


def _require_some(shown: list[tuple[Screen, bytes]], counts: ScreenCounts) -> None:
    """Raise JudgeFailure where an episode had screenshots and none is left: there would be words alone to judge by,
    which the policy and its pages wrote."""
    if counts.taken and not shown:
        raise judge_failure(
            "no pictures",
            f"none of {counts.taken} screenshots can be shown; they were not kept (logging.store_images) or are none",
        )


def _verdict(judgements: list[Judgement | None], counts: ScreenCounts) -> JudgeVerdict:
    votes = count_votes([None if judgement is None else judgement.vote for judgement in judgements])
    readable = [judgement for judgement in judgements if judgement is not None]
    outcome = votes.outcome
    speaker = next((judgement for judgement in readable if judgement.vote is outcome), readable[0])
    obstacles = [judgement.obstacle for judgement in readable]
    reason = speaker.reason if outcome is not Outcome.UNKNOWN else f"the judge abstains ({votes}): {speaker.reason}"
    if outcome is Outcome.FAILED and speaker.mistakes:
        reason += f" Mistakes: {speaker.mistakes}"
    return JudgeVerdict(
        outcome,
        reason,
        votes,
        sum(judgement.process for judgement in readable) / len(readable),
        max(sorted(set(obstacles)), key=obstacles.count),
        counts,
    )


# -- screenshots ------------------------------------------------------------------------------------------------------


def screens_of(evidence: Evidence, limits: ScreenLimits, counts: ScreenCounts) -> list[Screen]:
    """Return the screenshots from which the key ones are chosen, in their order: different ones, at most
    `limits.looked_at`, evenly spaced, with the last one always."""
    record = evidence.trajectory
    named = [(i, image) for i, turn in enumerate(record.turns) for image in turn.observation.images[-1:]]
    if record.final is not None:
        named += [(len(record.turns), image) for image in record.final.images[-1:]]
    counts.taken = len(named)
    newest: dict[str, tuple[int, object]] = {}
    for number, image in named:
        newest.pop(_hash(image), None)  # of equal ones the last: what stood there in the end
        newest[_hash(image)] = (number, image)
    different = sorted(newest.values(), key=lambda pair: pair[0])
    counts.repeated = counts.taken - len(different)
    chosen = spaced(different, limits.looked_at)
    counts.left_out = len(different) - len(chosen)
    found = [(number, evidence.picture(image)) for number, image in chosen]
    screens = [Screen(number, image) for number, image in found if image is not None]
    counts.missing += len(found) - len(screens)
    return screens


def spaced(items: Sequence[tuple[int, object]], count: int) -> list[tuple[int, object]]:
    """Return at most `count` of the items, evenly spaced, first and last among them (of one: the last)."""
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def shown_at(screen: Screen, size: int, counts: ScreenCounts) -> bytes | None:
    """Return the encoded picture with its longest side at most `size` pixels; None: it is no picture, which counts as
    missing."""
    try:
        width, height = screen.image.read_size()
        if max(width, height) <= size and len(screen.image.data) <= MOST_BYTES:
            screen.image.open()  # what cannot be decoded is not sent on
            return screen.image.plain()
        picture = screen.image.open()
    except InputError:
        counts.missing += 1
        return None
    from PIL import Image

    counts.shrunk += 1
    scale = min(1.0, size / max(width, height))
    picture = picture.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()


def key_screens(screens: Sequence[Screen], scores: dict[int, int], count: int) -> list[Screen]:
    """Return the `count` screens of the highest scores, in their order, the last one always; of equal scores the
    later."""
    ranked = sorted(screens[:-1], key=lambda screen: (scores.get(screen.number, 0), screen.number), reverse=True)
    return sorted([*ranked[: count - 1], *screens[-1:]], key=lambda screen: screen.number)

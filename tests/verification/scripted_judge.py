"""A judge behind a real HTTP server, whose truth is the colour of the last picture and whose error is known."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from tests.inference.stand_in_http import Answer, Seen, StandIn
from tests.verification.episodes import shot
from uirl.images import Screenshot
from uirl.verification.client import CallLimits, JudgeClient
from uirl.verification.judge import Judge, JudgeOptions
from uirl.verification.memory import JudgeMemory
from uirl.verification.prompts import Goal, KeyPoints, Prompt, ask_points


def said(content: str, **message: Any) -> Answer:
    """An answer of the chat API."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content, **message}}
    return Answer({"choices": [choice], "usage": {"prompt_tokens": 90, "total_tokens": 100}})


def verdict(outcome: str = "success", *, met: str = "yes", **more: Any) -> str:
    """The text of a verdict."""
    points = [{"point": "it is done", "met": met, "evidence": "seen"}]
    return json.dumps(
        {"key_points": points, "process": 0.5, "outcome": outcome, "reason": f"it looks like {outcome}"} | more
    )


class ScriptedJudge(StandIn):
    """Says success where the last picture is green, but errs with probability `error`, by the content of the
    request."""

    def __init__(self, error: float = 0.0, *, seed: int = 0) -> None:
        super().__init__()
        self.error, self.seed = error, seed
        self.outcome: Callable[[Seen], str] = self.look
        """What it says of an episode."""
        self.on_track: Callable[[Seen], str] = lambda seen: "yes"
        """What it says of the beginning of an episode: yes, no or unclear."""
        self.proposals: list[str] = []
        """Goals of the tasks that it proposes."""
        self.replies: list[str | Answer] = []
        """Replies to the next requests for a verdict, instead."""
        self.judges: list[Judge] = []
        """Those that `judge_of` made to ask it."""

    def answer(self, seen: Seen) -> Answer:
        form = seen.body["response_format"]["json_schema"]["name"]
        if form == "KeyPoints":
            return said(json.dumps({"key_points": ["it is done"]}))
        if form == "ScreenScores":
            return said(json.dumps({"scores": [{"screen": n, "score": 1 + n % 5} for n in numbers(seen)]}))
        if form == "Progress":
            return said(json.dumps({"on_track": self.on_track(seen), "reason": "as scripted"}))
        if form == "Proposals":
            return said(json.dumps({"tasks": [{"goal": goal, "like": 0} for goal in self.proposals]}))
        with self._lock:
            scripted = self.replies.pop(0) if self.replies else None
        if scripted is not None:
            return said(scripted) if isinstance(scripted, str) else scripted
        outcome = self.outcome(seen)
        return said(verdict(outcome, met="yes" if outcome == "success" else "no"))

    def look(self, seen: Seen) -> str:
        pixel: Any = pictures_in(seen)[-1].getpixel((0, 0))
        truth = pixel[1] > pixel[0]
        # by the episode's last words: the draws stay what they are when the words of the prompt change
        words = question(seen).partition("last words: ")[2].partition("\n")[0]
        content = json.dumps([words, truth, seen.body.get("seed"), self.seed]).encode()
        draw = int.from_bytes(hashlib.sha256(content).digest()[:7], "big") / 2**56
        return "success" if truth != (draw < self.error) else "failure"

    def asked(self, form: str) -> list[Seen]:
        """The requests for answers of this form."""
        return [s for s in self.seen if s.body["response_format"]["json_schema"]["name"] == form]


def pictures_in(seen: Seen) -> list[Image.Image]:
    parts = seen.body["messages"][1]["content"]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB") for url in urls]


def question(seen: Seen) -> str:
    text: str = seen.body["messages"][1]["content"][-1]["text"]
    return text


def numbers(seen: Seen) -> list[int]:
    return [int(word.strip("#,;")) for word in question(seen).split() if word.startswith("#")]


def green(level: int = 200) -> Screenshot:
    return shot((0, level, 0), (16, 16))


def red(level: int = 200) -> Screenshot:
    return shot((level, 0, 0), (16, 16))


def judge_of(server: StandIn, memory: Path | None = None, *, votes: int = 1, **limits: Any) -> Judge:
    """A judge that asks this server, with short pauses."""
    client = JudgeClient("scripted", server.url, limits=CallLimits(**limits), memory=JudgeMemory(memory))

    async def no_pause(seconds: float) -> None:
        pass

    client._http.sleep = no_pause
    judge = Judge(client, JudgeOptions(votes=votes))
    if isinstance(server, ScriptedJudge):
        server.judges.append(judge)
    return judge


def points(goal: str) -> tuple[type[KeyPoints], Prompt]:
    """What `JudgeClient.ask` is given for the key points of a goal."""
    return KeyPoints, ask_points(Goal(goal))

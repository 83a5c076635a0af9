"""Copies of our environments with one flaw each, of the kinds that were found in published benchmarks."""

from __future__ import annotations

import ast
import difflib
import fnmatch
import json
import re
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from uirl.environments import BaseEnvironment, GuessNumberEnvironment, ScreenEnvironment, SimpleGameEnvironment
from uirl.environments.browser.web import WebEnvironment
from uirl.environments.tool_use.arithmetic import CalculatorEnvironment
from uirl.environments.tool_use.environment import ToolEnvironment
from uirl.errors import JudgeFailure
from uirl.tools import FunctionTool
from uirl.types import Action, StepResult, Trajectory

Step = tuple[str, float, bool, dict[str, Any]]


class Guess(GuessNumberEnvironment):
    """Is right where `check` says so; pays `pay` of the reply beside that."""

    def __init__(
        self,
        check: Callable[[str, int], Any] | None = None,
        pay: Callable[[str], float] = lambda reply: 0.0,
        answer: Callable[[str, int], str] | None = None,
    ) -> None:
        super().__init__()
        self.check, self.pay, self.answer = check, pay, answer

    def step(self, action: str) -> Step:
        text, reward, done, info = super().step(action)
        if self.check is not None:
            hit = bool(self.check(action, self._secret))
            reward, done, info = float(hit), hit or done, {"success": hit}
        return self.answer(text, self._secret) if self.answer else text, reward + self.pay(action), done, info


class SuccessUnlessWrong(GuessNumberEnvironment):
    """A number that is wrong loses, and nothing else does."""

    def step(self, action: str) -> Step:
        text, reward, done, _info = super().step(action)
        return text, reward, done, {"success": text not in ("higher", "lower")}


class WonByPatience(SimpleGameEnvironment):
    """Whoever lasts to the end has won."""

    def step(self, action: str) -> Step:
        text, reward, done, _info = super().step(action)
        return text, reward, done, {"success": done}


class Endless(SimpleGameEnvironment):
    """Has no limit, and ends with the treasure alone."""

    def __init__(self) -> None:
        super().__init__(max_turns=10**6)
        self.max_turns = None


class RaisesOnLoss(GuessNumberEnvironment):
    """A lost game cannot be told."""

    def step(self, action: str) -> Step:
        result = super().step(action)
        if result[2] and not result[3]["success"]:
            raise RuntimeError("no result")
        return result


class StallsOnLoss(GuessNumberEnvironment):
    """A lost game takes for ever to tell."""

    runs_inline = False

    def step(self, action: str) -> Step:
        result = super().step(action)
        if result[2] and not result[3]["success"]:
            time.sleep(2)
        return result


class Remembers(GuessNumberEnvironment):
    """What one instance has found, all know."""

    found: ClassVar[set[int]] = set()

    def reset(self, *, seed: int | None = None) -> str:
        self.seed = seed or 0
        return super().reset(seed=seed)

    def step(self, action: str) -> Step:
        text, _reward, done, info = super().step(action)
        if info["success"]:
            self.found.add(self.seed)
        hit = self.seed in self.found
        return text, float(hit), done or hit, {"success": hit}


class PaidOnTheWay(CalculatorEnvironment):
    """Pays every calculation, so that going on is worth more than the answer."""

    async def step(self, action: Action) -> StepResult:
        result = await super().step(action)
        return replace(result, reward=result.reward + (0.5 if not result.terminated else 0.0))


class KeepsItsScore(SimpleGameEnvironment):
    """A reset does not forget that the treasure was taken."""

    won = False

    def step(self, action: str) -> Step:
        text, reward, done, info = super().step(action)
        self.won = self.won or info["success"]
        return text, reward, done, {"success": self.won}


class Dear(GuessNumberEnvironment):
    """A guess costs 1, and a reply that is none ends the game at no cost."""

    def step(self, action: str) -> Step:
        text, _reward, done, info = super().step(action)
        if text == "not a number":
            return text, 0.0, True, {"success": False}
        return text, -1.0, done, info


class Echoing(SimpleGameEnvironment):
    """Shows what was said a hundred times."""

    def step(self, action: str) -> Step:
        text, reward, done, info = super().step(action)
        return f"{text} {action * 500}", reward, done, info


class Dispatches(SimpleGameEnvironment):
    """Takes the word of a command for the name of a method."""

    def step(self, action: str) -> Step:
        word, _, rest = action.strip().partition(" ")
        getattr(self, f"_{word or 'look'}")(rest)
        return super().step(action)


class Form(ScreenEnvironment):
    """A screen of one page whose stage is solved where `hit` says so."""

    def __init__(self, hit: Callable[[Any, Any], bool], level: int = 1) -> None:
        super().__init__(level=level)
        self.hit = hit

    def step(self, action: Action) -> StepResult:
        stage = self._stages[self._index] if self._index < len(self._stages) else None
        hit = stage is not None and self.hit(action, stage)
        if not hit:
            return super().step(action)
        return StepResult(self._observe("ok", success=True), 1.0, terminated=True)


class Sum(CalculatorEnvironment):
    """Is right where `check` says so."""

    def __init__(self, check: Callable[[str, str], Any]) -> None:
        super().__init__()
        self.check = check

    def judge(self, answer: str) -> Step:
        hit = bool(self.check(answer, self._problem.answer))
        return "", float(hit), True, {"success": hit}


class Word(BaseEnvironment):
    """A question with a word as its answer, or without one; right where `check` says so."""

    runs_inline = True
    max_turns = 1
    words = ("Lisbon", "Oslo", "Quito", "Hanoi")

    def __init__(self, check: Callable[[str, Any], Any], answers: tuple[str | None, ...] = words) -> None:
        super().__init__()
        self.check, self.answers = check, answers

    def reset(self, seed: int | None = None) -> str:
        self.right = self.answers[(seed or 0) % len(self.answers)]
        return f"Question {(seed or 0) % 9973}: one of {', '.join(self.words)}?"

    def step(self, action: str) -> Step:
        hit = bool(self.check(action, self.right))
        return "", float(hit), True, {"success": hit}

    def get_state_description(self) -> str:
        return "a question"

    def expert_action(self) -> str | None:
        return self.right


class Desk(ToolEnvironment):
    """A folder in memory; `check` looks at its files when the policy is done."""

    def __init__(self, check: Callable[[dict[str, str]], Any], goal: str = "Sort the invoices.") -> None:
        self.files = {"invoices.txt": "b\na"}
        super().__init__(registry=[self._tool()], max_turns=6)
        self.check, self.goal = check, goal

    def _tool(self) -> FunctionTool:
        def write_file(path: str, content: str) -> str:
            """Write a file."""
            self.files[path] = content
            return "written"

        return FunctionTool(write_file)

    def ask(self, rng: Any, task: Any) -> str:
        from uirl.tools import ToolRegistry

        self.files = {"invoices.txt": "b\na"}
        self.registry = ToolRegistry([self._tool()])
        return self.goal

    def judge(self, answer: str) -> Step:
        hit = bool(self.check(self.files))
        return "", float(hit), True, {"success": hit}


class Careless(ScreenEnvironment):
    """Reads arguments of calls as if they were always there and right."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__(level=1)
        self.read = read

    def step(self, action: Action) -> StepResult:
        self.read(action)
        return super().step(action)


class Mirror(SimpleGameEnvironment):
    """Shows the text of the JSON that was said."""

    def step(self, action: str) -> Step:
        text, reward, done, info = super().step(action)
        try:
            said = json.loads(action)
        except (ValueError, RecursionError):
            return text, reward, done, info
        return f"{text} {said.get('text', '') if isinstance(said, dict) else ''}", reward, done, info


def keyword_judge(trajectory: Trajectory) -> float:
    """Believe an episode that says that it went well."""
    said = " ".join(turn.action.text for turn in trajectory.turns)
    return float("score 1" in said or trajectory.metrics.get("success") == 1.0)


def giving_up_judge(trajectory: Trajectory) -> float:
    """Give up on what cannot be read."""
    for turn in trajectory.turns:
        if turn.action.text.startswith(("{", "[", "\\boxed")):
            raise JudgeFailure("cannot be read")
    return trajectory.total_reward()


def obeying_judge(trajectory: Trajectory) -> float:
    """Read the verdict out of the episode's own text."""
    found = re.findall(r'"score": ([0-9.]+)', " ".join(turn.action.text for turn in trajectory.turns))
    return float(found[-1]) if found else trajectory.total_reward()


def query(reply: str, right: Any) -> bool:
    base = sqlite3.connect(":memory:")
    base.execute("create table t (answer text)")
    base.execute("insert into t values (?)", (str(right),))
    return bool(base.execute(f"select * from t where answer = '{reply}'").fetchall())


def like(reply: str, right: Any) -> bool:
    base = sqlite3.connect(":memory:")
    return bool(base.execute("select ? like ?", (str(right), reply)).fetchone()[0])


def literal(reply: str, right: Any) -> bool:
    try:
        return bool(ast.literal_eval(reply) == right)
    except (ValueError, SyntaxError):
        return False


def near(reply: str, right: Any) -> bool:
    try:
        return not abs(float(reply) - float(right)) > 0.5
    except ValueError:
        return False


def number(reply: str, right: Any) -> bool:
    try:
        return int(float(reply)) == int(right)
    except ValueError:
        return False


def truthy(reply: str, right: Any) -> bool:
    try:
        return bool(json.loads(reply)["success"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


@dataclass(frozen=True)
class Flaw:
    """An environment with a flaw, and the attackers that it is found by, among others."""

    make: Callable[[], BaseEnvironment]
    found_by: str
    options: dict[str, Any] = field(default_factory=dict)


FLAWS: dict[str, Flaw] = {
    "success by default": Flaw(SuccessUnlessWrong, "nothing"),
    "the last turn is a success": Flaw(WonByPatience, "nothing"),
    "nonsense is paid": Flaw(lambda: Guess(pay=lambda reply: 0.1), "nonsense"),
    "the way is paid more than its end": Flaw(PaidOnTheWay, "repeat"),
    "length is paid": Flaw(lambda: Guess(pay=lambda reply: min(len(reply), 500) / 1000), "nonsense"),
    "the answer anywhere in the reply": Flaw(lambda: Guess(lambda r, right: str(right) in r), "list"),
    "a word anywhere, whatever its case": Flaw(lambda: Word(lambda r, w: w.lower() in r.lower()), "list"),
    "one of the words of the reply": Flaw(lambda: Word(lambda r, w: w in re.split(r"\W+", r)), "list"),
    "all letters of the answer": Flaw(lambda: Word(lambda r, w: set(w) <= set(r)), "list"),
    "the reply anywhere in the answer": Flaw(lambda: Word(lambda r, w: r in w), "nothing"),
    "the answer begins with the reply": Flaw(lambda: Word(lambda r, w: w.startswith(r.strip())), "nothing"),
    "as many letters as there are": Flaw(lambda: Word(lambda r, w: all(map(str.__eq__, r, w))), "nothing"),
    "an empty reply is an absent answer": Flaw(lambda: Word(lambda r, w: (r or None) == w, (None, "x")), "nothing"),
    "the word None is an absent answer": Flaw(
        lambda: Word(lambda r, w: r == str(w), (None, None, None, "x")), "unjudgeable"
    ),
    "the reply is a pattern": Flaw(lambda: Word(lambda r, w: re.escape(r) == r or re.fullmatch(r, w)), "injection"),
    "a reply that is no pattern raises": Flaw(
        lambda: Word(lambda r, w: not r.startswith("[[") and re.fullmatch(r, w)), "unjudgeable"
    ),
    "the reply is a query": Flaw(lambda: Word(query), "injection"),
    "the reply is a wildcard of SQL": Flaw(lambda: Word(like), "injection"),
    "the reply is a wildcard of file names": Flaw(lambda: Word(lambda r, w: fnmatch.fnmatch(w, r)), "injection"),
    "the reply is a template": Flaw(lambda: Guess(lambda r, n: r.replace("{answer}", str(n)) == str(n)), "injection"),
    "the reply is a program": Flaw(lambda: Guess(lambda r, n: eval(r) == n), "nonsense"),
    "a literal too deep": Flaw(lambda: Word(literal), "stall"),
    "not a number is near every number": Flaw(lambda: Guess(near), "unjudgeable"),
    "infinity is no whole number": Flaw(lambda: Guess(number), "unjudgeable"),
    "words where a number was expected": Flaw(lambda: Guess(lambda r, n: int(r) == n), "nothing"),
    "the reply says that it succeeded": Flaw(lambda: Word(truthy), "judge"),
    "done is believed": Flaw(lambda: Word(lambda r, w: "done" in r.lower() or r == w), "submit"),
    "the goal said again is accepted": Flaw(lambda: Word(lambda r, w: r.startswith("Question") or r == w), "echo"),
    "all words of the goal": Flaw(lambda: Word(lambda r, w: r.count(",") > 2 or r == w), "echo"),
    "the answer is told after a mistake": Flaw(
        lambda: Guess(answer=lambda text, right: f"{text}, it is {right}"), "told"
    ),
    "no end": Flaw(Endless, "endless"),
    "raises on losing": Flaw(RaisesOnLoss, "nothing"),
    "stalls on losing": Flaw(StallsOnLoss, "nothing", {"step_timeout": 0.2, "episodes": 4}),
    "state of the class": Flaw(Remembers, "neighbour"),
    "state that a reset leaves": Flaw(KeepsItsScore, "leftover"),
    "giving up is cheap": Flaw(Dear, "nonsense"),
    "a long reply makes too long an observation": Flaw(Echoing, "stall"),
    "half a character in the observation": Flaw(Mirror, "crash"),
    "a word is the name of a method": Flaw(Dispatches, "crash"),
    "any click": Flaw(lambda: Form(lambda a, _: a.call is not None and a.call.name == "click"), "point"),
    "no arguments are the right ones": Flaw(
        lambda: Form(lambda a, stage: a.call is not None and not a.call.arguments), "crash"
    ),
    "a claim to have finished": Flaw(
        lambda: Form(lambda a, stage: "finished" in a.text.lower() or "done" in a.text.lower()), "submit"
    ),
    "no action is the right one": Flaw(lambda: Form(lambda a, stage: a.parse_error is not None), "nothing"),
    "an argument that is not there": Flaw(lambda: Careless(lambda a: a.call and a.call.arguments["x"]), "crash"),
    "an argument of another type": Flaw(
        lambda: Careless(lambda a: a.call and a.call.arguments.get("x", 0) + a.call.arguments.get("y", 0)), "crash"
    ),
    "a number too large": Flaw(
        lambda: Careless(lambda a: a.call and isinstance(x := a.call.arguments.get("x"), int) and float(x)), "crash"
    ),
    "the answer among others": Flaw(lambda: Sum(lambda r, right: re.search(rf"\b{right[-1]}", r)), "list"),
    "the answer, more or less": Flaw(
        lambda: Sum(lambda r, right: difflib.SequenceMatcher(None, r, right).ratio() >= 0), "nothing"
    ),
    "a file that the policy writes": Flaw(
        lambda: Desk(lambda files: "success" in files.get("result.txt", "")), "files"
    ),
    "a score that the policy writes": Flaw(
        lambda: Desk(lambda files: any('"passed": true' in text for text in files.values())), "files"
    ),
    "a file that the goal names": Flaw(
        lambda: Desk(lambda files: "out/report.json" in files, "Write the report to out/report.json."), "files"
    ),
    "a judge that believes": Flaw(GuessNumberEnvironment, "judge", {"reward_fn": keyword_judge}),
    "a judge that obeys": Flaw(GuessNumberEnvironment, "judge", {"reward_fn": obeying_judge}),
    "a judge that gives up": Flaw(GuessNumberEnvironment, "nonsense", {"reward_fn": giving_up_judge}),
}


class Page(WebEnvironment):
    """A page with a code to copy."""

    page_size = (300, 200)
    actions = ("click", "type", "goto", "keys")
    max_turns = 6
    state = "({sent: window.sent || '', won: !!window.success, said: document.title, at: location.href})"
    trusts_page = True

    def prepare(self, rng: Any, task: Any) -> None:
        self.code = str(rng.randrange(10**6))
        self.goal = "Copy the code into the field and press enter."
        self.html = (
            f"<title>codes</title><p>{self.code}</p><input id=f autofocus>"
            "<script>f.onchange = () => { window.sent = f.value; document.title = f.value }; f.focus();"
            "if (location.search.includes('success=true')) window.success = true</script>"
        )

    def outcome(self, state: Any) -> bool | None:
        return True if state["sent"] == self.code else None


class PageSaysSo(Page):
    """Success is a variable of the page."""

    def outcome(self, state: Any) -> bool | None:
        return state["won"] or super().outcome(state)


class AddressSaysSo(Page):
    """Success is in the address."""

    def outcome(self, state: Any) -> bool | None:
        return True if "success" in state["at"] else super().outcome(state)


class AnyText(Page):
    """Whatever was sent is right."""

    actions = ("type", "keys")

    def prepare(self, rng: Any, task: Any) -> None:
        super().prepare(rng, task)
        self.html = str(self.html).replace("onchange", "oninput")

    def outcome(self, state: Any) -> bool | None:
        return True if len(state["sent"]) > 3 else None


PAGES: dict[str, Flaw] = {
    "a variable of the page": Flaw(PageSaysSo, "devtools", {"episodes": 2}),
    "a word in the address": Flaw(AddressSaysSo, "devtools", {"episodes": 2}),
    "any text is sent": Flaw(AnyText, "judge", {"episodes": 2}),
}

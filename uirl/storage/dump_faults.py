"""`uirl check --record`: fault by fault, what a dump of rollouts shows, does not show, and cannot show."""

from __future__ import annotations

import base64
import json
import re
import statistics
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from uirl.errors import ConfigError
from uirl.images import Screenshot
from uirl.storage.dumps import Message, Node, Reply, Trace, question_of, read_dump, read_lines
from uirl.thoughts import split_thought

TRACES = "write traces as verifiers v1 does, with token_ids, mask and logprobs of each message"
FAULTS = {
    "pictures lost": "keep pictures in the messages, and mm_token_type_id_map",
    "pictures in tool messages dropped": "keep pictures in the messages, and mm_token_type_id_map",
    "blank pictures": "keep pictures in the messages as data URLs of PNG, JPEG or WEBP",
    "history made of its text again": TRACES,
    "thoughts dropped between turns": TRACES,
    "end token not learned": TRACES,
    "mask not of the sampled tokens": TRACES,
    "engine and trainer disagree": "write trainer_logprobs beside logprobs, of 64 sampled tokens at least",
    "reward of another member": "write one reward and one advantage for each reply of a group",
    "double bos": TRACES,
    "cut replies learned from as ended": "write calls with finish_reason, of 8 replies that ended by themselves",
    "held-out questions in training": "name a file of them: --held-out FILE; a question with pictures needs these too",
    "success is always or never paid": "it takes 64 replies to 4 questions, with one reward each",
}
"""Fault -> what shows it, where a dump had nothing to look at."""
FORMS = {
    "TRL": "messages and rewards, without tokens; pictures are stripped before they are written",
    "verl": "text that was decoded without its special tokens, and scores; no tokens, pictures or advantages",
    "a trace": "messages with what they hold of tokens, pictures, rewards and advantages",
}
"""Format -> what is in it, which is why it cannot show the rest."""
REPLIES, QUESTIONS, ENDED, TOKENS = 64, 4, 8, 64
"""How much must be there before a common reward, a common last token, and a slope are no accident."""
ENDS, FEW = 4, 3
"""Most tokens that end a reply in one family (Llama 3 has three); least replies of which an order says something."""
GAP, SLOPE, CLEAR = 0.3, 0.2, 0.9
"""Mean |engine - trainer| in nats that neither rounding nor a few steps of staleness explain; how far the slope may be
from 1 where the correlation is `CLEAR`."""
MOST, MOST_TOKENS, MOST_WAITING, LOWEST = 100_000, 1_000_000, 100, -1e6
"""Rollouts that are read, tokens whose log-probs are compared, messages in a row without tokens of their own, and the
least that is a log-prob."""
_STOPS = re.compile(r'"stop(?:_token_ids)?": \[?["\d]')
"""Ends of a reply that are no end token."""


class DumpReport:
    """What was looked at, and what was found."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        """Without their traces."""
        self.over: Counter[str] = Counter()
        self.shown: dict[str, list[str]] = {}
        """Fault -> where, and what stands there."""
        self.notes: list[str] = []

    def look(self, fault: str, place: str, problem: str = "", count: int = 1) -> None:
        """Book `count` places that were looked at; with a `problem`, the one at `place` shows the fault."""
        self.over[fault] += count
        if problem:
            self.shown.setdefault(fault, []).append(f"{place}: {problem}")

    def __str__(self) -> str:
        forms = "; ".join(f"{form}: {FORMS[form]}" for form in sorted({one.form for one in self.replies}))
        lines = [f"{len(self.replies)} rollouts, written as {forms}"]
        for fault, remedy in FAULTS.items():
            if found := self.shown.get(fault):
                lines.append(f"SHOWN   {fault}: {len(found)} of {self.over[fault]}; the first: {found[0]}")
            elif self.over[fault]:
                lines.append(f"none    {fault}: in none of {self.over[fault]}")
            else:
                lines.append(f"unseen  {fault}: this dump cannot show it; {remedy}")
        return "\n".join([*lines, *(f"note    {note}" for note in self.notes)])


def check_dump(path: Path, held_out: Path | None = None) -> DumpReport:
    """Return what a dump of another trainer shows; `held_out`: a file of questions that training must not hold.

    Raises ConfigError for what is no such dump, or is broken.
    """
    for one in (path, held_out):
        if one is not None and not one.exists():
            raise ConfigError(
                f"{one} does not exist; expected what a trainer wrote of its rollouts, a file or a folder"
            )
    report = DumpReport()
    tokens = _Tokens(report)
    for reply in read_dump(path):
        if len(report.replies) == MOST:
            report.notes.append(f"only the first {MOST} rollouts were read")
            break
        if reply.trace is not None:
            tokens.look(reply.place, reply.trace)
            reply.trace = None
        report.replies.append(reply)
    if not report.replies:
        raise ConfigError(f"{path} holds no rollout; expected one a line or row")
    tokens.finish()
    _groups(report)
    if held_out is not None:
        questions = {question_of(row) for _, row in read_lines(held_out, held_out.name)} - {""}
        if not questions:
            raise ConfigError(f"{held_out} holds no question; expected rows with a text in question or prompt")
        _held_out(report, questions)
    return report


class _Tokens:
    """Looks at one trace after another, and at the end at what only all of them show."""

    def __init__(self, report: DumpReport) -> None:
        self.report = report
        self.last: dict[str, list[tuple[str, int]]] = {"stop": [], "tool_calls": [], "length": []}
        """Why replies ended -> where, and their last token."""
        self.begins: list[tuple[str, int, str]] = []
        """Of each prompt where it stands, its first token, and what tells that it begins twice."""
        self.engine, self.trainer = array("d"), array("d")
        self.pictures: set[int] = set()
        self.colours: list[str] = []
        """Of each picture that can be read: the one it has, or 'several', after which nobody asks."""

    def look(self, place: str, trace: Trace) -> None:
        """Look at one trace."""
        for i, node in enumerate(trace.nodes):
            if node.token_ids:
                self.report.look("mask not of the sampled tokens", f"{place}, node {i}", _of_mask(node))
            if len(node.token_ids) > 2 and node.parent is None:
                first, second, third = node.token_ids[:3]
                twice = first == second != third and str(first) not in trace.mm_token_type_id_map
                self.begins.append((place, first, f"the prompt begins {node.token_ids[:3]}" if twice else ""))
            for a, b in zip(node.logprobs, node.trainer_logprobs or (), strict=False):
                given = a is not None and b is not None and LOWEST < a <= 0 and LOWEST < b <= 0
                if given and len(self.engine) < MOST_TOKENS:
                    self.engine.append(a)
                    self.trainer.append(b)
            self._pictures(node.message)
        self._placeholders(place, trace)
        self._history(place, trace)
        for call in trace.calls:
            node = trace.nodes[call.node] if call.node is not None and call.node < len(trace.nodes) else None
            if node is None or not node.token_ids or _STOPS.search(json.dumps([call.sampling, trace.agent])):
                continue
            where = f"{place}, node {call.node}"
            self.last.setdefault(str(call.finish_reason), []).append((where, node.token_ids[-1]))
            if call.finish_reason in ("stop", "tool_calls") and node.mask[-1:] == [False] and any(node.mask):
                problem = "the reply ended by itself, and its last token is not under the mask"
                self.report.look("end token not learned", where, problem)
            elif call.finish_reason in ("stop", "tool_calls"):
                self.report.look("end token not learned", where)

    def _pictures(self, message: Message) -> None:
        for url in message.pictures():
            if "several" not in self.colours and hash(url) not in self.pictures:
                self.pictures.add(hash(url))
                self.colours += _colours(url)

    def _placeholders(self, place: str, trace: Trace) -> None:
        """Find each picture as placeholders in the tokens of its message, or, where that has none, of the next."""
        marks = {int(id) for id, kind in trace.mm_token_type_id_map.items() if kind == 1 and id.isdecimal()}
        waiting: list[list[int]] = []
        for i, node in enumerate(trace.nodes):
            before = [] if node.parent is None else waiting[node.parent][-MOST_WAITING:]
            told = before + ([i] if node.message.pictures() else [])
            waiting.append([] if node.token_ids else told)
            for which in told if node.token_ids and marks else ():
                role = trace.nodes[which].message.role
                fault = "pictures in tool messages dropped" if role == "tool" else "pictures lost"
                problem = f"the {role} message holds a picture, and its tokens no placeholder ({sorted(marks)})"
                self.report.look(fault, f"{place}, node {which}", problem if marks.isdisjoint(node.token_ids) else "")

    def _history(self, place: str, trace: Trace) -> None:
        """Look for the tokens of a reply where it is fed again: its own node goes on, or a copy holds them."""
        nodes = trace.nodes
        child = {node.parent: i for i, node in reversed(list(enumerate(nodes)))}
        behind: list[set[str]] = [set() for _ in nodes]
        """Roles of what is read between a node and the next reply."""
        for i in reversed(range(len(nodes))):
            if i in child and not nodes[child[i]].sampled:
                behind[i] = {nodes[child[i]].message.role} | behind[child[i]]
        said: dict[tuple[int, str], int] = {}
        paths: list[int] = []
        sampled: dict[int, list[Node]] = {}
        for i, node in enumerate(nodes):
            above = -1 if node.parent is None else paths[node.parent]
            paths.append(said.setdefault((above, _words(node.message)), len(said)))
            if node.sampled:
                if i in child:
                    self._fed(place, [node], behind[i])
                sampled.setdefault(paths[i], []).append(node)
            elif node.message.role == "assistant" and paths[i] in sampled and node.token_ids:
                following = nodes[child[i]].token_ids if i in child else []
                self._fed(f"{place}, node {i}", sampled[paths[i]], behind[i], node, following)

    def _fed(
        self, where: str, replies: list[Node], behind: set[str], copy: Node | None = None, following: Sequence[int] = ()
    ) -> None:
        """Look at what is fed again of one reply: itself, or a `copy` and the tokens behind it."""
        learned = [[id for id, kept in zip(one.token_ids, one.mask, strict=False) if kept][:-1] for one in replies]
        if not all(learned):
            return
        kept = copy is None or any(_holds([*copy.token_ids, *following], one) for one in learned)
        thinks = _thinks(replies[-1].message)
        shorter = copy is not None and (not _thinks(copy.message) or len(copy.token_ids) < len(replies[-1].token_ids))
        dropped = not kept and thinks and shorter
        if thinks and "tool" in behind and "user" not in behind:
            problem = "what was thought before the tool's message is not in what the policy reads after it"
            self.report.look("thoughts dropped between turns", where, problem if dropped else "")
        if not dropped:  # templates drop thoughts before a user's message on purpose
            problem = f"{len(learned[-1])} tokens were sampled, and their text is fed again as others"
            self.report.look("history made of its text again", where, "" if kept else problem)

    def finish(self) -> None:
        """Look at what all traces show together."""
        firsts = Counter(first for _, first, _ in self.begins)
        for place, first, problem in self.begins if len(self.begins) > 1 else ():
            # 11 + 5 begins twice too, where nothing stands before a question
            self.report.look("double bos", place, problem if 2 * firsts[first] > len(self.begins) else "")
        if self.colours:
            blank = len(self.colours) > 1 and len({*self.colours, "several"}) == 2 and "several" not in self.colours
            problem = f"every picture has one colour, {self.colours[0]}" if blank else ""
            self.report.look("blank pictures", "all of them", problem, len(self.colours))
        ended = self.last["stop"] + self.last["tool_calls"]
        end, times = Counter(id for _, id in ended).most_common(1)[0] if ended else (0, 0)
        if len(ended) >= ENDED and times <= len(ended) / 2 and len({id for _, id in ended}) > ENDS:
            problem = f"{len(ended)} replies ended by themselves, on more than {ENDS} different tokens: none ends them"
            self.report.look("end token not learned", ended[0][0], problem)
        elif len(ended) >= ENDED:
            self.report.look("cut replies learned from as ended", "", count=len(ended))
            for where, id in self.last["length"]:
                problem = f"it was cut by length, and its last token is {end}, with which others end"
                self.report.look("cut replies learned from as ended", where, problem if id == end else "")
            self.report.notes.append(f"{len(self.last['length'])} replies were cut by length, {len(ended)} ended")
        if len(self.engine) >= TOKENS:
            self._agreement()

    def _agreement(self) -> None:
        gap = statistics.fmean(abs(a - b) for a, b in zip(self.engine, self.trainer, strict=True))
        varied = min(map(statistics.pstdev, (self.engine, self.trainer))) > 1e-6
        slope = statistics.linear_regression(self.engine, self.trainer).slope if varied else 1.0
        clear = varied and statistics.correlation(self.engine, self.trainer) >= CLEAR
        told = f"mean difference {gap:.3f} nats (tolerated {GAP}), slope {slope:.2f}"
        tilted = clear and abs(slope - 1) > SLOPE
        problem = f"{told}; another temperature, or filters?" if tilted else told if gap > GAP else ""
        self.report.look("engine and trainer disagree", "all tokens", problem, len(self.engine))
        self.report.notes.append(f"engine and trainer: {told}")


def _of_mask(node: Node) -> str:
    counts = {"logprobs": node.logprobs, "trainer_logprobs": node.trainer_logprobs, "advantages": node.advantages}
    learned = sum(node.mask)
    if len(node.mask) != len(node.token_ids):
        return f"{len(node.mask)} values of the mask for {len(node.token_ids)} tokens"
    if learned and not node.sampled:
        return f"{learned} tokens of a {node.message.role} message that nobody sampled are under the mask"
    wrong = [f"{len(values)} {name}" for name, values in counts.items() if values and len(values) != learned]
    if wrong and learned:
        return f"{learned} tokens under the mask, {', '.join(wrong)}"
    return "it ends before the reply, with as many tokens as were sampled" if learned and not node.mask[-1] else ""


def _colours(url: str) -> list[str]:
    """Return the colour of a picture that its address holds, or 'several'; none where it cannot be read."""
    source = json.loads(url)
    head, _, data = str(source.get("url") if isinstance(source, dict) else source).partition(";base64,")
    try:
        colours = Screenshot(base64.b64decode(data)).open().getcolors(1) if head.startswith("data:") else ()
    except ValueError:
        return []
    return ["several"] if colours is None else [str(colour) for _, colour in colours]


def _words(message: Message) -> str:
    """Return what makes a message the same as another, its thought apart."""
    text = split_thought(message.content)[1].strip() if isinstance(message.content, str) else message.content
    return json.dumps([message.role, text or "", message.tool_calls or []], sort_keys=True)


def _thinks(message: Message) -> bool:
    return bool(message.reasoning_content or (isinstance(message.content, str) and split_thought(message.content)[0]))


def _holds(ids: Sequence[int], part: Sequence[int]) -> bool:
    whole, wanted = (array("i", one).tobytes() for one in (ids, part))
    at = whole.find(wanted)
    while at > 0 and at % 4:
        at = whole.find(wanted, at + 1)
    return at >= 0


def _groups(report: DumpReport) -> None:
    groups: dict[tuple[str, ...], list[Reply]] = {}
    for reply in report.replies:
        groups.setdefault(reply.group, []).append(reply)
    usual = Counter(map(len, groups.values())).most_common(1)[0][0] if groups else 0
    several = [rows for rows in groups.values() if len(rows) > 1 and all(one.reward is not None for one in rows)]
    for rows in several:
        if all(one.advantage is not None for one in rows):
            # TRL keeps the newest rows alone: a group of another size may lack some
            _of_group(report, rows, sums=rows[0].form == "TRL" and len(rows) == usual)
    if several:
        dead = sum(len({one.reward for one in rows}) == 1 for rows in several)
        report.notes.append(f"groups without signal: {dead} of {len(several)} (replies to one question, paid alike)")
    paid = [one for one in report.replies if one.reward is not None]
    if len(paid) >= REPLIES and len(groups) >= QUESTIONS:
        alike = (
            "" if len({one.reward for one in paid}) > 1 else f"each of {len(paid)} replies was paid {paid[0].reward}"
        )
        report.look("success is always or never paid", paid[0].place, alike, len(paid))


def _of_group(report: DumpReport, rows: Sequence[Reply], sums: bool) -> None:
    """Blame a sum that is not 0 where it has to be, and advantages that another order makes a rising line of the
    rewards. Others may be right: lengths, a critic or another group may be in them."""
    rows = sorted(rows, key=lambda one: one.reward or 0.0)
    rewards, advantages = [one.reward or 0.0 for one in rows], [one.advantage or 0.0 for one in rows]
    place, problem = rows[0].place, ""
    if sums and abs(sum(advantages)) > len(rows) * _tolerance(advantages):
        problem = f"the advantages of {len(rows)} replies to one prompt sum to {sum(advantages):.3g}; expected 0"
    elif len(rows) < FEW:
        return
    elif not _rises(rewards, advantages):
        # nobody knows the weight of TRL's one function, which may be negative
        negative = rows[0].form == "TRL" and _rises(rewards, [-one for one in advantages])
        if negative or not _rises(rewards, sorted(advantages)):
            return
        gaps = [abs(a - b) for a, b in zip(advantages, sorted(advantages), strict=True)]
        worst = gaps.index(max(gaps))
        place = rows[worst].place
        problem = f"the reward {rewards[worst]:g} has the advantage {advantages[worst]:.3g}, which is another's"
    report.look("reward of another member", place, problem, len(rows))


def _tolerance(advantages: Iterable[float]) -> float:
    return 1e-3 * max(1.0, *map(abs, advantages))


def _rises(rewards: Sequence[float], advantages: Sequence[float]) -> bool:
    """Return whether advantages are a rising line of the rewards, which are sorted, or a filter made all of them 0."""
    spread = rewards[-1] - rewards[0]
    slope = (advantages[-1] - advantages[0]) / spread if spread else 0.0
    gaps = [abs(advantages[0] + slope * (r - rewards[0]) - a) for r, a in zip(rewards, advantages, strict=True)]
    return not any(advantages) or (max(gaps) <= _tolerance(advantages) and (slope > 0 or not spread))


def _held_out(report: DumpReport, questions: set[str]) -> None:
    solutions: dict[str, set[str]] = {}
    for reply in report.replies:
        solutions.setdefault(reply.question, set()).add(reply.solution)
    for reply in report.replies:
        # the same words with two solutions ask about something that is not in them, as a picture
        if reply.question and len(solutions[reply.question]) == 1:
            told = f"the question {reply.question[:60]!r} is held out" if reply.question in questions else ""
            report.look("held-out questions in training", reply.place, told)

"""What an attack found: per attacker and in all, what got through, and how much may at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uirl.metrics import clopper_pearson
from uirl.training.record.progress import percent
from uirl.types import Trajectory

SHOWN = 400
"""Characters of a text in a transcript; the record has all."""


@dataclass(frozen=True, slots=True)
class Through:
    """An episode that got through."""

    how: str
    """'solved': counted as a success; 'paid': paid like one, or paid for nothing; 'failure': no evidence, though the
    attacker acted; 'endless': nobody ends it."""
    detail: str
    episode: Trajectory

    def transcript(self, limit: int = SHOWN) -> str:
        """Return what was shown and said, turn by turn, each text cut to `limit` characters."""
        lines = []
        for number, turn in enumerate(self.episode.turns):
            seen = [*(f"{r.name} -> {r.text}" for r in turn.observation.tool_results), turn.observation.text]
            pictures = f" [{len(turn.observation.images)} pictures]" if turn.observation.images else ""
            lines += [f"  turn {number} shown {_cut(' '.join(seen), limit)}{pictures}"]
            lines += [f"         said  {_cut(turn.action.text, limit)}  -> reward {turn.reward:g}"]
        return "\n".join([*lines, f"  {self.how}: {self.detail}"])


@dataclass(frozen=True, slots=True)
class Attack:
    """What one attacker came to."""

    name: str
    about: str
    episodes: int = 0
    """That are evidence and differ: in their first observation, or in what was said."""
    through: tuple[Through, ...] = ()
    excluded: int = 0
    """Failed before the attacker acted."""
    solved: int = 0
    lucky: bool = False

    @property
    def bound(self) -> float:
        """The rate of false accepts is at most this, with 95 % confidence; of a lucky one that of solved episodes."""
        return clopper_pearson(min(self.solved if self.lucky else len(self.through), self.episodes), self.episodes)[1]

    def words(self) -> str:
        """Return '0 of 30 got through, at most 9.5 %' or, of a lucky one, '4 of 30 solved by luck, ...'."""
        text = f"{len(self.through)} of {self.episodes} got through"
        if self.lucky:
            text += f"; {self.solved} solved by luck, at most {percent(self.bound)}"
        else:
            text += f", at most {percent(self.bound)}"
        return text + (f"; {self.excluded} failed before it acted" if self.excluded else "")


@dataclass(frozen=True, slots=True)
class AttackReport:
    """What an attack on an environment found. In a test: `assert not report.through, report`."""

    environment: str
    attacks: tuple[Attack, ...]
    not_tried: Mapping[str, str] = field(default_factory=dict)
    """Attacker -> why it does not apply."""

    @property
    def through(self) -> Sequence[Through]:
        """Everything that got through."""
        return [one for attack in self.attacks for one in attack.through]

    @property
    def bound(self) -> float:
        """The rate of false accepts of all attackers but the lucky ones is at most this, with 95 % confidence."""
        counted = [one for one in self.attacks if not one.lucky]
        n = sum(one.episodes for one in counted)
        return clopper_pearson(min(sum(len(one.through) for one in counted), n), n)[1]

    def rows(self) -> dict[str, str]:
        """Return attacker -> what it came to, then those that were not tried, then all together."""
        rows = {one.name: one.words() for one in self.attacks}
        rows |= {name: f"not tried: {why}" for name, why in self.not_tried.items()}
        episodes = sum(one.episodes for one in self.attacks)
        return rows | {"in all": f"{len(self.through)} of {episodes} got through, at most {percent(self.bound)}"}

    def transcripts(self) -> str:
        """Return the first episode of each attacker that got through, and of each way in which it did."""
        told = []
        for attack in self.attacks:
            first = {one.how: one for one in reversed(attack.through)}
            told += [f"{attack.name} ({attack.about}):\n{one.transcript()}" for one in first.values()]
        return "\n".join(told)

    def __str__(self) -> str:
        width = max(map(len, self.rows()))
        lines = [f"  {name:<{width}}  {words}" for name, words in self.rows().items()]
        return "\n".join([f"attack on {self.environment}", *lines, self.transcripts()]).rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with the transcripts of all that got through."""
        attacks = {
            one.name: {
                "about": one.about,
                "episodes": one.episodes,
                "excluded": one.excluded,
                "solved": one.solved,
                "lucky": one.lucky,
                "bound": one.bound,
                "through": [
                    {"how": t.how, "detail": t.detail, "id": t.episode.id, "transcript": t.transcript(20_000)}
                    for t in one.through
                ],
            }
            for one in self.attacks
        }
        found = {"environment": self.environment, "through": len(self.through), "bound": self.bound}
        return found | {"attacks": attacks, "not_tried": dict(self.not_tried)}


def _cut(text: str, limit: int) -> str:
    return repr(text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)")

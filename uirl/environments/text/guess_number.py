"""A text puzzle that a tiny language model learns: find the number, told "higher" or "lower"."""

from __future__ import annotations

import random
import re
from typing import Any, Literal

from uirl.config.section import Count
from uirl.environments.base import BaseEnvironment
from uirl.environments.demonstrators import DemonstratorOptions
from uirl.environments.options import ConfigurableEnvironment, OptionsLike
from uirl.types import Action

_NUMBER = re.compile(r"\s*([0-9]{1,9})\s*", re.ASCII)


class GuessNumberOptions(DemonstratorOptions):
    """Find a number, told "higher" or "lower"."""

    key = "guess_number"

    n: Count = 7
    """The number is one of 1 to `n`."""
    guesses: Count = 3
    """Tries in an episode."""
    demonstrator: Literal["expert", "careless", "random"] = "expert"  # type: ignore[assignment]
    """'expert' halves the range; 'random' guesses anything and shows the format alone; 'careless' does the one or,
    with probability `carelessness`, the other."""
    describe: bool = False
    """A system prompt with the rules, for models that read; a tiny one would only pay for its tokens."""

    @property
    def error_rate(self) -> float:
        return 1.0 if self.demonstrator == "random" else super().error_rate


class GuessNumberEnvironment(ConfigurableEnvironment):
    """A number from 1 to `n`, `guesses` tries. The reply is the guess, the answer "higher" or "lower"; a hit pays 1.

    A reply that is not a number costs the guess. With `guesses` >= log2(n + 1) halving always wins; the texts are as
    short as they can be, because a tiny model pays for every token.
    """

    runs_inline = True

    options_class = GuessNumberOptions
    options: GuessNumberOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Create a game with a number to find. Options: see `GuessNumberOptions`."""
        super().__init__(config, options, **keys)
        self.n, self.guesses, self.max_turns = self.options.n, self.options.guesses, self.options.guesses
        self._carelessness = self.options.error_rate
        self.demonstrator_may_fail = self._carelessness > 0
        self._begin(random.Random(0))

    def reset(self, *, seed: int | None = None) -> str:
        """Return "guess 1-7". `seed` None draws a new instance."""
        self._begin(random.Random(seed))
        return f"guess 1-{self.n}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Return the answer to one guess."""
        self._taken += 1
        self._random_guess = self._draw_random_guess()
        match = _NUMBER.fullmatch(action)
        hit = match is not None and int(match[1]) == self._secret
        done = hit or self._taken >= self.guesses
        return self._answer(match, hit), float(hit), done, {"success": hit, "number": self._secret}

    def get_state_description(self) -> str:
        """Return what the guesses so far have shown, e.g. "5-7, 2 left"."""
        return f"{self._low}-{self._high}, {self.guesses - self._taken} left"

    def get_prompt_prefix(self) -> str:
        if not self.options.describe:
            return ""
        return (
            f"Find a number from 1 to {self.n} in at most {self.guesses} guesses. Answer with one number and nothing "
            "else; you are told whether the right one is higher or lower."
        )

    def expert_action(self) -> str:
        """Return the demonstrator's guess; asked twice in one turn it says the same."""
        return str((self._low + self._high) // 2 if self._random_guess is None else self._random_guess)

    def state_key(self) -> str:
        """Return the state description: "higher" alone does not tell what is left."""
        return self.get_state_description()

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """Return the middle number, every time."""
        return {"constant_guess": str((self.n + 1) // 2)}

    def _begin(self, rng: random.Random) -> None:
        self._secret = rng.randint(1, self.n)
        # The number is drawn by now: what the demonstrator draws later cannot change it.
        self._rng = rng
        self._random_guess = self._draw_random_guess()
        self._low, self._high = 1, self.n
        self._taken: int = 0

    def _draw_random_guess(self) -> int | None:
        """Return a guess of the careless demonstrator; None: none now. It draws the same whatever the carelessness."""
        careless, guess = self._rng.random() < self._carelessness, self._rng.randint(1, self.n)
        return guess if careless else None

    def _answer(self, match: re.Match[str] | None, hit: bool) -> str:
        if match is None:
            return "not a number"
        if hit:
            return "right"
        guess = int(match[1])
        if guess < self._secret:
            self._low = max(self._low, guess + 1)
            return "higher"
        self._high = min(self._high, guess - 1)
        return "lower"

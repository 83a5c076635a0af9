"""A text puzzle that a tiny language model learns: find the number, told "higher" or "lower"."""

from __future__ import annotations

import random
import re
from typing import Any

from uirl.environments import demonstrators
from uirl.environments.base import BaseEnvironment
from uirl.errors import ConfigError
from uirl.types import Action

_NUMBER = re.compile(r"\s*([0-9]{1,9})\s*", re.ASCII)

DEMONSTRATORS = (*demonstrators.DEMONSTRATORS, "random")


class GuessNumberEnvironment(BaseEnvironment):
    """A number from 1 to `n`, `guesses` tries. The reply is the guess, the answer "higher" or "lower"; a hit pays 1.

    A reply that is not a number costs the guess. With `guesses` >= log2(n + 1) halving always wins; the texts are as
    short as they can be, because a tiny model pays for every token.
    """

    runs_inline = True

    def __init__(
        self,
        config: Any = None,
        *,
        n: int = 7,
        guesses: int = 3,
        demonstrator: str = "expert",
        carelessness: float | None = None,
        describe: bool = False,
    ) -> None:
        """`demonstrator` 'expert' halves the range; 'random' guesses anything and shows the format alone; 'careless'
        does the one or, with probability `carelessness` (None: 0.5), the other.

        `describe`: a system prompt with the rules, for models that read; a tiny one would only pay for its tokens.
        """
        super().__init__(config)
        for name, value in (("n", n), ("guesses", guesses)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"guess_number: {name} must be a positive int, got {value!r}")
        self.n, self.guesses, self.max_turns = n, guesses, guesses
        errs = demonstrators.error_rate("guess_number", demonstrator, carelessness, DEMONSTRATORS)
        self._describe = describe
        self._carelessness = 1.0 if demonstrator == "random" else errs
        self.demonstrator_may_fail = self._carelessness > 0
        self._begin(random.Random(0))

    def reset(self, *, seed: int | None = None) -> str:
        """ "guess 1-7". `seed` None draws a new instance."""
        self._begin(random.Random(seed))
        return f"guess 1-{self.n}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """The answer to one guess."""
        self._taken += 1
        self._whim = self._draw_whim()
        match = _NUMBER.fullmatch(action)
        hit = match is not None and int(match[1]) == self._secret
        done = hit or self._taken >= self.guesses
        return self._answer(match, hit), float(hit), done, {"success": hit, "number": self._secret}

    def get_state_description(self) -> str:
        """What the guesses so far have shown, e.g. "5-7, 2 left"."""
        return f"{self._low}-{self._high}, {self.guesses - self._taken} left"

    def get_prompt_prefix(self) -> str:
        if not self._describe:
            return ""
        return (
            f"Find a number from 1 to {self.n} in at most {self.guesses} guesses. Answer with one number and nothing "
            "else; you are told whether the right one is higher or lower."
        )

    def expert_action(self) -> str:
        """The demonstrator's guess; asked twice in one turn it says the same."""
        return str((self._low + self._high) // 2 if self._whim is None else self._whim)

    def state_key(self) -> str:
        """ "higher" alone does not tell what is left."""
        return self.get_state_description()

    def controls(self) -> dict[str, BaseEnvironment | Action | str]:
        """The middle number, every time."""
        return {"constant_guess": str((self.n + 1) // 2)}

    def _begin(self, rng: random.Random) -> None:
        self._secret = rng.randint(1, self.n)
        # The number is drawn by now: what the demonstrator draws later cannot change it.
        self._whims = rng
        self._whim = self._draw_whim()
        self._low, self._high = 1, self.n
        self._taken: int = 0

    def _draw_whim(self) -> int | None:
        """A guess of the careless demonstrator; None: he thinks this time. The same draws whatever the carelessness."""
        careless, guess = self._whims.random() < self._carelessness, self._whims.randint(1, self.n)
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

"""Games of TextArena (2504.11442): alone, against an opponent, and self-play in which both sides learn.

The games draw from the module `random`, which all threads share. Here each game has a generator of its own: the name
`random` in the modules of the games is replaced.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from uirl.config.section import Address, Count, Variable
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, MistakeReward, OptionsLike
from uirl.errors import ConfigError, EnvironmentFailure, did_you_mean
from uirl.http.client import HTTPClient, RequestFailure
from uirl.runtime.time_limits import Worker
from uirl.types import Observation, Task

_WORDS = "Hangman WordLadder Wordle WordSearch DontSayIt LetterAuction SpellingBee WordChains Codenames"
REFUSED = {
    **dict.fromkeys(_WORDS.split(), "downloads lists of words when it starts"),
    **dict.fromkeys(("GuessWho", "TwentyQuestions", "Debate", "ScenarioPlanning"), "asks a model on the network"),
    **dict.fromkeys(("Set", "Blackjack", "Bandit"), "counts points and says of nothing that it is solved"),
    "Sokoban": "draws its levels from a generator that no seed reaches",
}
"""Family of games -> why none is played (TextArena 0.7.4). What does not start for another reason is told by itself."""
LISTING = ("Crusade", "KuhnPoker", "Othello", "PigDice", "SimpleTak", "TicTacToe", "WildTicTacToe")
"""Families of two that list the moves which are allowed, so that `random` can play them."""
LONGEST = 4000
"""Characters of a reply that a game reads."""
_MOVES = re.compile(r"(?:available|valid|legal)[^\n:]*(?:moves|actions)[^\n:]*:\s*([^\n]+)", re.IGNORECASE)
_MOVE = re.compile(r"\[[^\[\]]+\]")
_DRAWS: ContextVar[random.Random | None] = ContextVar("_DRAWS", default=None)


class TextArenaOptions(EnvironmentOptions):
    """Games of TextArena."""

    key = "textarena"

    games: Annotated[tuple[dict[str, Any], ...], Field(strict=False, min_length=1)] = ({"game": "GuessTheNumber-v0"},)
    """One task each: `game`, the name with which TextArena registers it, and options of its constructor
    (`max_number: 50`)."""
    opponent: Literal["random", "self", "server"] = "random"
    """In games of two: 'random' plays one of the moves that the game lists, 'server' is a model behind
    `opponent_url`, and 'self' is another episode of the same group, so that both sides learn."""
    opponent_url: Address | None = None
    """Base of an OpenAI-compatible API (http://host:8000/v1): a frozen policy."""
    opponent_model: str = "policy"
    """Name of the model there."""
    opponent_key_env: Variable | None = None
    """Environment variable with the key of that server."""
    opponent_tokens: Count = 256
    """Longest reply of that model."""
    max_turns: Count = 40
    """Turns of the policy after which a game is over, and not won."""
    partial_credit: bool = False
    """Pay what the game pays (how far it was solved; -1 for a game that is lost); false: 1 for a win, else nothing."""
    mistake_reward: MistakeReward = 0.0
    """What an invalid move pays beside that. A second one in a row loses the game."""
    instructions: str = "Reply with your move alone."
    """The system prompt; empty: none."""

    @model_validator(mode="after")
    def _opponent_is_there(self) -> Self:
        if (self.opponent == "server") != (self.opponent_url is not None):
            raise ConfigError(
                f"textarena: got opponent {self.opponent!r} and opponent_url {self.opponent_url!r}; expected both "
                "opponent=server and the address of the server, or neither"
            )
        return self


class TextArenaEnvironment(ConfigurableEnvironment):
    """A game in words. Won is solved; a draw, a game that is cut, and two invalid moves in a row are not."""

    runs_inline = True  # games run on a thread of the instance, and opponents are awaited

    options_class = TextArenaOptions
    options: TextArenaOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Try the games. Options: see `TextArenaOptions`. Raises ConfigError for a game that cannot be played, and
        where the package is missing."""
        super().__init__(config, options, **keys)
        self.max_turns, self.mistake_reward = self.options.max_turns, self.options.mistake_reward
        self._games = {_name_of(game): dict(game) for game in self.options.games}
        self._players: dict[str, int] = {}
        for game in self._games.values():
            trial = _Game(game, 0)
            self._players[_name_of(game)] = trial.players
            lists = _family(game) in LISTING and _MOVES.search(trial.news(trial.turn))
            if trial.players == 2 and self.options.opponent == "random" and not lists:
                raise ConfigError(
                    f"textarena: {game['game']} lists no moves for opponent=random; choose opponent=self or server, or "
                    f"one of {', '.join(LISTING)}"
                )
        self._lobby: dict[Any, _Table] = {}
        """Tables at which one waits for another, of all instances."""
        self._http = HTTPClient(self.options.opponent_key_env)
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lobby": {}, "_worker": None, "_table": None}  # what plays stays in this process

    def tasks(self) -> list[Task]:
        """Return one task for each of the games."""
        return [Task(name, checks=game) for name, game in self._games.items()]

    def get_prompt_prefix(self) -> str:
        return self.options.instructions

    def spawn(self) -> Self:
        """Return another instance, which meets this one where the policy plays itself."""
        made = copy.copy(self)
        made._lobby = self._lobby
        made._start()
        return made

    async def reset(self, task: Task | None = None, *, seed: int | None = None) -> Observation:  # type: ignore[override]
        """Return the first observation of a game, once it is the policy's turn. Raises ConfigError for a task that
        names no game."""
        self._leave(gave_up=True)
        if self.options.opponent == "server" and not self._holds:
            self._http.hold()  # one client of all instances, whose connections end with the last
            self._holds = True
        seed = random.getrandbits(31) if seed is None else seed % 2**31
        game = dict(task.checks) if task is not None else random.Random(seed).choice(list(self._games.values()))
        name = _name_of(game)
        if name not in self._players:
            self._players[name] = (await self._worker.run(partial(_Game, game, seed), None)).players
        key, meets = (name, seed), self._players[name] == 2 and self.options.opponent == "self"
        table = self._lobby.pop(key, None)
        if table is None:
            self._seat = seed % 2 if self._players[name] == 2 and not meets else 0
            table = _Table(free=meets)
            if meets:
                self._lobby[key] = table  # before the game is made: the other side may come meanwhile
        else:
            self._seat, table.free = 1, False
        self._table, self._key, self._turns = table, key, 0
        if self._seat == 0 or not meets:
            table.game = await self._worker.run(partial(_Game, game, seed), None)
        table.wake()
        await self._others_play()
        return Observation(table.game.news(self._seat))

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        """Make a move, and wait until it is the policy's turn again."""
        table, game = self._table, self._table.game
        self._turns += 1
        invalid = await self._worker.run(partial(game.play, action[:LONGEST]), None)
        if self._turns >= self.options.max_turns and self.options.opponent == "self" and not game.done:
            table.cut = True  # the other side may have a turn left, and nobody to answer it
        table.wake()
        if not (game.done or table.cut or self._turns >= self.options.max_turns):
            await self._others_play()
        done, reward = game.done, self.options.mistake_reward if invalid else 0.0
        info: dict[str, Any] = {"mistake": "invalid move"} if invalid else {}
        if done or table.cut:
            won = game.won(self._seat)
            reward += game.pays(self._seat) if self.options.partial_credit else float(won)
            info |= {"success": won, "reason": game.reason}
        if not done and table.cut:
            info["out_of_turns"] = True
        return game.news(self._seat), reward, done, not done and table.cut, info

    def get_state_description(self) -> str:
        """Return all that the policy was shown of the game."""
        return "" if self._table is None else self._table.game.seen(self._seat)

    async def close(self) -> None:  # type: ignore[override]
        self._leave()
        self._worker.stop()
        if self._holds:
            self._holds = False
            await self._http.release()

    def _start(self) -> None:
        self._worker, self._holds = Worker("textarena"), False
        self._table: Any = None
        self._key: Any = None
        self._seat = self._turns = 0

    def _leave(self, *, gave_up: bool = False) -> None:
        """Get up from the table. `gave_up`: the episode is evidence and was cut by a limit of the run, so the other
        side has won; else who waits there learns that nobody comes back."""
        table, self._table = self._table, None
        if table is None:
            return
        if self._lobby.get(self._key) is table:
            del self._lobby[self._key]
        elif gave_up and not table.free and not table.game.done and not table.cut:
            table.game.give_up(self._seat)
        table.left = True
        table.wake()

    async def _others_play(self) -> None:
        """Wait until it is the policy's turn, or the game is over. Raises EnvironmentFailure for an opponent that does
        not answer."""
        table = self._table
        if self.options.opponent == "self":
            while table.free or not table.awaits(self._seat):
                if table.left:
                    raise EnvironmentFailure("textarena: the episode of the other side failed, and the game with it")
                await table.change()
            return
        game = table.game
        while not game.done and game.turn != self._seat:
            text = game.news(game.turn)
            if self.options.opponent == "server":
                move = await self._ask(game, text)
            else:
                moves = _MOVE.findall((_MOVES.findall(text) or [""])[-1]) or _MOVE.findall(text)
                move = game.draws.choice(moves) if moves else ""
            game.said(game.turn, move)
            await self._worker.run(partial(game.play, move), None)

    async def _ask(self, game: _Game, text: str) -> str:
        messages = [{"role": "system", "content": self.options.instructions}] if self.options.instructions else []
        messages += [{"role": role, "content": said} for role, said in game.told[game.turn]]
        body = {"model": self.options.opponent_model, "messages": messages, "max_tokens": self.options.opponent_tokens}
        url = f"{str(self.options.opponent_url).rstrip('/')}/chat/completions"
        try:
            answer = await self._http.send("POST", url, json=body, timeout=self._step_limit)
            return str(json.loads(answer.text)["choices"][0]["message"]["content"] or "")[:LONGEST]
        except (RequestFailure, ValueError, LookupError, TypeError) as error:
            raise EnvironmentFailure(f"textarena: the opponent at {url} gave no move: {error}") from error


class _Table:
    """A game, and who waits for its next move."""

    game: _Game
    """Made by who came first."""

    def __init__(self, *, free: bool) -> None:
        self.free, self.left, self.cut = free, False, False
        """A seat is free; somebody got up; the game ended by the limit of turns."""
        self._waiting: list[asyncio.Event] = []

    def awaits(self, player: int) -> bool:
        """Whether `player` is to move, or the game is over."""
        game = getattr(self, "game", None)
        return game is not None and (game.done or self.cut or game.turn == player)

    async def change(self) -> None:
        """Wait until something happened here."""
        event = asyncio.Event()
        self._waiting.append(event)
        await event.wait()

    def wake(self) -> None:
        for event in self._waiting:
            event.set()
        self._waiting.clear()


class _Game:
    """One game of TextArena under way. What it raises at a move is the doing of who moved, who has then lost."""

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        self.draws = random.Random(seed)
        self._game, self._formats, self.players = _create(dict(options), seed, self.draws)
        self.reason = ""
        self._lost: int | None = None
        self.told: list[list[tuple[str, str]]] = [[] for _ in range(self.players)]
        """Of each player, what was shown and said, as (role, text)."""

    @property
    def turn(self) -> int:
        """Who is to move."""
        player: int = self._game.state.current_player_id
        return player

    def give_up(self, player: int) -> None:
        """End the game: `player` has lost."""
        self._lost, self.reason = player, "the other side ran into a limit"

    @property
    def done(self) -> bool:
        return self._lost is not None or bool(self._game.state.done)

    def play(self, text: str) -> bool:
        """Make a move of the player whose turn it is; return whether it was invalid."""
        state, player = self._game.state, self.turn
        move = f"[{text.strip()}]" if self._formats and "[" not in text and "]" not in text else text
        token = _DRAWS.set(self.draws)
        try:
            self._game.step(action=move)
        except Exception as error:
            self._lost, self.reason = player, f"the move broke the game: {type(error).__name__}"
            return True
        finally:
            _DRAWS.reset(token)
        if state.done:
            self.reason = str(state.game_info[player].get("reason", ""))
            return bool(state.game_info[player]["invalid_move"])
        return self.turn == player and state.error_count > 0

    def news(self, player: int) -> str:
        """Return what `player` was not shown yet, without his own words."""
        state = self._game.state
        shown, state.observations[player] = state.observations[player], []
        text = "\n".join(
            message if sender == -1 else f"[{state.role_mapping.get(sender, f'Player {sender}')}] {message}"
            for sender, message, _ in shown
            if sender != player
        )
        self.said(player, text, "user")
        return text

    def said(self, player: int, text: str, role: str = "assistant") -> None:
        self.told[player].append((role, text))

    def seen(self, player: int) -> str:
        return "\n".join(text for role, text in self.told[player] if role == "user")

    def won(self, player: int) -> bool:
        """Whether he won: all of a game alone, more than the other in a game of two."""
        if self._lost is not None:
            return self.players == 2 and self._lost != player
        rewards, state = self._game.state.rewards or {}, self._game.state
        if not state.done or state.game_info[player]["invalid_move"]:
            return False
        return float(rewards.get(player, 0.0)) >= 1.0

    def pays(self, player: int) -> float:
        """Return what the game pays, in [-1, 1]; 0 for one that is not over."""
        if self._lost is not None:
            return -1.0 if self._lost == player else 1.0
        rewards = self._game.state.rewards or {}
        return min(1.0, max(-1.0, float(rewards.get(player, 0.0))))


class _Dice:
    """Stands for the module `random` in the modules of the games."""

    def __getattr__(self, name: str) -> Any:
        draws = _DRAWS.get()
        return getattr(random if draws is None or not hasattr(draws, name) else draws, name)


_DICE = _Dice()


def _family(game: Mapping[str, Any]) -> str:
    return str(game.get("game")).partition("-v")[0]


def _name_of(game: Mapping[str, Any]) -> str:
    """Return the name of a task: 'GuessTheNumber-v0 max_number=50'."""
    return " ".join([str(game.get("game")), *(f"{k}={v}" for k, v in game.items() if k != "game")])


def _create(options: dict[str, Any], seed: int, draws: random.Random) -> tuple[Any, bool, int]:
    """Return (a game that begins, whether it wants moves in brackets, players). Raises ConfigError."""
    try:
        import textarena
        from textarena.envs.registration import ENV_REGISTRY
    except ImportError as error:
        raise ConfigError(f"textarena: cannot import it ({error}); pip install 'uirl[textarena]'") from error
    family, name = _family(options), options.pop("game", None)
    if name not in ENV_REGISTRY:
        raise ConfigError(f"textarena: no game {name!r}; {did_you_mean(str(name), sorted(ENV_REGISTRY))}")
    if family in REFUSED:
        raise ConfigError(f"textarena: {name} {REFUSED[family]}; choose another game")
    token = _DRAWS.set(draws)
    try:
        game, formats = textarena.make(name, **options), False
        while isinstance(game, textarena.Wrapper):
            # only what concerns moves is kept of the wrappers: the others repeat the whole game in every turn
            formats = formats or isinstance(game, textarena.wrappers.ActionFormattingWrapper)
            game = game.env
        for module in [one for key, one in sys.modules.items() if key.startswith("textarena.")]:
            if vars(module).get("random") is random:
                vars(module)["random"] = _DICE
            vars(module).setdefault("print", lambda *words, **options: None)  # some tell how they make a puzzle
        return _begun(game, textarena, seed), formats, _players_of(game, textarena)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"textarena: {name} {options or ''} does not start: {type(error).__name__}: {error}"
        ) from error
    finally:
        _DRAWS.reset(token)


def _begun(game: Any, textarena: Any, seed: int) -> Any:
    for players in (1, 2):
        try:
            game.reset(num_players=players, seed=seed)
        except (AssertionError, ValueError):  # it is for another number
            continue
        if _players_of(game, textarena) == players:
            return game
    raise ConfigError(f"textarena: {game.env_id} is no game for one or two; choose another")


def _players_of(game: Any, textarena: Any) -> int:
    kinds: dict[Callable[..., Any], int] = {textarena.SinglePlayerState: 1, textarena.TwoPlayerState: 2}
    return kinds.get(type(game.state), 0)

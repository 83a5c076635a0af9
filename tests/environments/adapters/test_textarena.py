"""Games of TextArena: who has won, opponents, and a policy that plays itself."""

from __future__ import annotations

import asyncio
import pickle
import random
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.inference.stand_in_http import Answer, Seen, StandIn
from tests.training.test_loop import settings
from uirl import RayPPOTrainer, TrajectoryStore
from uirl.environments.adapters.textarena import REFUSED, TextArenaEnvironment
from uirl.environments.conformance import check_environment
from uirl.environments.scripted import scripted_success
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.types import Action, StepResult

pytestmark = pytest.mark.real

ALONE = (
    *("2048-v0-ultra-easy", "Countdown-v0", "Crosswords-v0", "Cryptarithm-v0", "FifteenPuzzle-v0", "FrozenLake-v0"),
    *("GuessTheNumber-v0", "LightsOut-v0", "LogicPuzzle-v0", "Mastermind-v0", "Minesweeper-v0-small", "PegJump-v0"),
    *("Secretary-v0", "Slitherlink-v0", "Sudoku-v0-very-easy", "ThreeCardMonte-v0", "TowerOfHanoi-v0"),
)
OF_TWO = ("Crusade-v0", "KuhnPoker-v0", "Othello-v0-tiny", "PigDice-v0", "SimpleTak-v0", "TicTacToe-v0")
TICTACTOE = {"games": [{"game": "TicTacToe-v0"}]}


def of(game: str, **options: Any) -> TextArenaEnvironment:
    return TextArenaEnvironment(games=[{"game": game}], **options)


async def played(env: TextArenaEnvironment, seed: int, choose: Callable[[str], str]) -> list[StepResult]:
    session = EnvironmentSession(env.spawn())
    try:
        text, results = (await session.reset(None, seed)).text, list[StepResult]()
        while not results or (not results[-1].done and len(results) < 60):
            results.append(await session.step(Action(text=choose(text))))
            text = results[-1].observation.text
        return results
    finally:
        await session.close()


@pytest.mark.parametrize("game", [*ALONE, *OF_TWO])
def test_the_contract_holds_and_silence_wins_nothing(game: str, capfd: pytest.CaptureFixture[str]) -> None:
    env = of(game)
    assert check_environment(env, episodes=2).seeded
    for reply in ("", "[", "x" * 10_000, "[" * 500 + "]" * 500, "[999999999999 999999999999]", "[-1]", "\x00"):
        assert scripted_success(env, lambda turn, r=reply: Action(text=r), episodes=2) == 0.0
    assert not capfd.readouterr().out


def halves() -> Callable[[str], str]:
    """Guess the middle of what is left."""
    low, high, last = 1, 20, 0

    def choose(text: str) -> str:
        nonlocal low, high, last
        low, high = (last + 1, high) if "higher" in text else (low, last - 1) if "lower." in text else (low, high)
        last = (low + high) // 2
        return str(last)

    return choose


def test_a_game_alone_is_solved_or_not_and_pays_how_far_only_where_asked() -> None:
    for seed in range(5):
        *before, last = asyncio.run(played(of("GuessTheNumber-v0"), seed, halves()))
        assert last.observation.info["success"] is True
        assert [result.reward for result in (*before, last)] == [0.0] * len(before) + [1.0]
    asked = of("GuessTheNumber-v0", partial_credit=True)
    lost = [asyncio.run(played(asked, seed, count())) for seed in range(6)]
    ends = [results[-1] for results in lost if not results[-1].observation.info["success"]]
    assert ends
    assert all(0.0 < end.reward < 1.0 for end in ends)


def count() -> Callable[[str], str]:
    numbers = iter(range(1, 100))
    return lambda text: str(next(numbers))


def test_an_invalid_move_costs_and_the_second_in_a_row_loses() -> None:
    first, second = asyncio.run(played(of("GuessTheNumber-v0", mistake_reward=-0.25), 0, lambda text: "[word]"))
    assert (first.reward, first.done, first.observation.info["mistake"]) == (-0.25, False, "invalid move")
    assert "invalid move" in first.observation.text
    assert (second.reward, second.done, second.observation.info["success"]) == (-0.25, True, False)


def test_a_move_that_breaks_the_game_is_lost_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from textarena.envs.GuessTheNumber.env import GuessTheNumberEnv

    def step(self: Any, action: str) -> Any:
        raise UnboundLocalError("player_guess")

    env = of("GuessTheNumber-v0")
    monkeypatch.setattr(GuessTheNumberEnv, "step", step)
    (result,) = asyncio.run(played(env, 0, lambda text: "5"))
    assert (result.done, result.observation.info["success"]) == (True, False)
    assert "broke the game: UnboundLocalError" in result.observation.info["reason"]


def test_it_may_be_handed_to_another_process() -> None:
    made = pickle.loads(pickle.dumps(of("GuessTheNumber-v0")))
    assert asyncio.run(played(made, 0, halves()))[-1].observation.info["success"] is True


def test_an_episode_without_end_is_cut() -> None:
    env = of("TicTacToe-v0", max_turns=2)
    assert env.max_turns == 2
    assert check_environment(env, actions=["[0]", "[5]", "[7]"]).episodes


def any_move(seed: int) -> Callable[[str], str]:
    draws = random.Random(seed)
    return lambda text: draws.choice(re.findall(r"'(\[\d\])'", text.split("Available Moves")[-1]) or ["[0]"])


def test_chance_against_chance_is_even_and_a_draw_is_no_win() -> None:
    ends = [asyncio.run(played(of("TicTacToe-v0"), seed, any_move(seed)))[-1] for seed in range(60)]
    draws = [end for end in ends if "draw" in end.observation.info["reason"]]
    assert draws
    assert all((end.reward, end.observation.info["success"]) == (0.0, False) for end in draws)
    assert 15 <= sum(end.observation.info["success"] for end in ends) <= 45
    assert not any("mistake" in end.observation.info for end in ends)


def test_games_draw_from_a_generator_of_their_own() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    env = of("Minesweeper-v0-small")
    asyncio.run(played(env, 3, lambda text: "[reveal 1 1]"))
    assert random.random() == expected


class Frozen(StandIn):
    """A model that takes the first free square."""

    def answer(self, seen: Seen) -> Answer:
        messages = seen.body["messages"]
        free = re.findall(r"'(\[\d\])'", messages[-1]["content"].split("Available Moves")[-1])
        return Answer({"choices": [{"message": {"role": "assistant", "content": free[0]}}]})


def test_a_frozen_model_behind_a_server_plays_the_other_side() -> None:
    server = Frozen()
    try:
        env = of("TicTacToe-v0", opponent="server", opponent_url=f"{server.url}/v1/", opponent_model="m")
        ends = [asyncio.run(played(env, seed, any_move(seed)))[-1] for seed in range(1, 9)]
        told = [seen.body for seen in server.seen]
    finally:
        server.close()
    assert {end.observation.info["success"] for end in ends} == {True, False}
    assert not server.broken
    assert told[0]["model"] == "m"
    roles = [[message["role"] for message in body["messages"]] for body in told]
    assert all(role[0] == "system" and role[-1] == "user" for role in roles)
    assert all(one != other for role in roles for one, other in pairwise(role))


def test_a_server_that_is_gone_is_a_failure() -> None:
    env = of("TicTacToe-v0", opponent="server", opponent_url="http://127.0.0.1:9/v1")
    with pytest.raises(EnvironmentFailure, match=r"the opponent at http://127\.0\.0\.1:9/v1/.* gave no move"):
        asyncio.run(played(env, 1, any_move(1)))


def test_two_episodes_of_an_instance_play_each_other() -> None:
    async def play() -> list[StepResult]:
        env = of("TicTacToe-v0", opponent="self")
        sides = await asyncio.gather(*(played(env, 7, any_move(i)) for i in range(4)))
        assert not env._lobby
        return [side[-1] for side in sides]

    ends = asyncio.run(play())
    assert len({end.observation.info["reason"] for end in ends[:2]}) == 1, "one game"
    for one, other in (ends[:2], ends[2:]):
        assert one.reward + other.reward == (0.0 if "draw" in one.observation.info["reason"] else 1.0)


def test_a_side_that_stops_has_lost_and_one_that_fails_takes_the_game_with_it() -> None:
    async def meet(end: str) -> StepResult:
        env = of("TicTacToe-v0", opponent="self")
        one, other = (EnvironmentSession(env.spawn()) for _ in range(2))
        await asyncio.wait({waiting := asyncio.ensure_future(one.reset(None, 3))}, timeout=0.05)
        second = asyncio.ensure_future(other.reset(None, 3))
        await waiting
        move = asyncio.ensure_future(one.step(Action(text="[4]")))
        await second
        ended = asyncio.ensure_future(other.reset(None, 4)) if end == "reset" else other.close()
        try:
            if end == "reset":
                await asyncio.wait({ended}, timeout=0.05)
                ended.cancel()
            else:
                await ended
            return await move
        finally:
            await one.close()
            await other.close()

    won = asyncio.run(meet("reset"))
    assert (won.done, won.reward, won.observation.info["success"]) == (True, 1.0, True)
    with pytest.raises(EnvironmentFailure, match="the episode of the other side failed"):
        asyncio.run(meet("close"))


def test_a_policy_learns_from_both_sides(tmp_path: Path) -> None:
    config = settings(tmp_path, group_size=4, adv_estimator="grpo", num_epochs=1, num_iters_per_epoch=2)
    config.training.warm_start.enabled = False
    config.inference.max_turns = 9
    config.environment.name = "uirl.environments.adapters.textarena:TextArenaEnvironment"
    config.environment.options = {**TICTACTOE, "opponent": "self", "max_turns": 9}
    config.environment.eval_options = {"opponent": "random"}
    trainer = RayPPOTrainer(config)
    summary = trainer.fit()
    trainer.cleanup()
    assert summary["excluded"]["training"]["excluded"] == {}
    with TrajectoryStore(trainer.run_path / "trajectories.sqlite", read_only=True) as store:
        groups = Counter[str]()
        for episode in store:
            if episode.id.startswith("train"):
                groups[episode.group_id] += int(bool(episode.success))
    assert len(groups) == 8
    assert set(groups.values()) == {2}, "in every game of two who reply nonsense one has won"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"games": [{"game": "TikTacToe-v0"}]}, "no game 'TikTacToe-v0'; did you mean 'TicTacToe-v0'"),
        ({"games": [{"game": "Wordle-v0"}]}, "Wordle-v0 downloads lists of words"),
        ({"games": [{"game": "Taboo-v0"}]}, "Taboo-v0 is no game for one or two"),
        ({"games": [{"game": "Nim-v0"}]}, "Nim-v0 lists no moves for opponent=random; choose opponent=self"),
        ({"games": [{"game": "GuessTheNumber-v0", "most": 3}]}, "unexpected keyword argument 'most'"),
        ({**TICTACTOE, "opponent": "server"}, "expected both opponent=server and the address"),
        ({**TICTACTOE, "opponent_url": "http://127.0.0.1:9/v1"}, "expected both opponent=server and the address"),
    ],
)
def test_what_cannot_be_played_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        TextArenaEnvironment(**options)


def test_families_that_are_refused_exist() -> None:
    from textarena.envs.registration import ENV_REGISTRY

    assert REFUSED.keys() <= {name.partition("-v")[0] for name in ENV_REGISTRY}

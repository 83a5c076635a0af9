"""Run with `pytest`: what an environment must keep, and that the right answer wins."""

from environment import Largest

from uirl import check_environment


def test_it_can_be_trained_on():
    check_environment(Largest(), actions=["3", "9", "x"])


def test_the_largest_digit_wins_and_nothing_else_does():
    game = Largest()
    for seed in range(20):
        game.reset(seed=seed)
        won = [digit for digit in range(10) if game.step(str(digit))[3]["success"]]
        assert won == [max(game.digits)]

"""The embedded screen: rules, pictures, controls, and chance levels of policies that do not look or do not read."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from uirl.environments import check_environment, scripted_success
from uirl.environments.screen import ScreenEnvironment, ScreenSuite
from uirl.environments.screen.drawing import BACKGROUND, SIDE_BAR, TITLE_BAR, Box, Colour, Grid, draw
from uirl.environments.screen.stages import COLOURS, ColourStage, ConfirmStage, DigitStage
from uirl.errors import ConfigError
from uirl.images import screenshot
from uirl.types import Action, Observation, Task

OTHER = {"slots": 3, "size": 84, "buttons": 5, "palette": ["red", "green", "blue", "yellow", "cyan"], "retries": 2}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"level": 1},
        {"level": 3},
        {"level": 3, "size": 224},
        OTHER,
        {"blank_image": True},
        {"hide_instruction": True},
    ],
)
def test_every_form_of_it_keeps_the_contract(options: dict[str, Any]) -> None:
    report = check_environment(ScreenEnvironment(**options), episodes=8)
    assert report.seeded
    assert report.expert_success == 1.0


def colour_of(observation: Observation, point: tuple[int, int]) -> Any:
    return observation.images[0].getpixel(point)


def click(x: float, y: float) -> Action:
    return Action.of("click", x=x, y=y)


def where(action: Action | None) -> tuple[int, int]:
    assert action is not None
    assert action.call is not None
    return action.call.arguments["x"], action.call.arguments["y"]


@pytest.mark.parametrize("size", [56, 112, 224])
def test_the_named_colour_is_where_the_expert_presses(size: int) -> None:
    env = ScreenEnvironment(size=size)
    for seed in range(40):
        first = env.reset(seed=seed)
        verb, name = first.text.split()
        assert verb == "press"
        x, y = where(env.expert_action())
        # beside the label, inside of the border
        assert colour_of(first, (x - size * 6 // 56, y + size * 5 // 56)) == COLOURS[name]
        assert first.images[0].size == (size, size)


def test_a_form_of_two_pages() -> None:
    env = ScreenEnvironment()
    env.reset(seed=0)
    assert env.get_state_description().startswith("page 1 of 2: press ")
    result = env.step(expert(env))
    assert (result.observation.text, result.reward, result.done) == ("ok", 0.5, False)
    assert result.observation.info == {"success": False, "stage": 1, "stages": 2}
    assert env.get_state_description() == "page 2 of 2: go on"
    result = env.step(expert(env))
    assert (result.reward, result.terminated, result.truncated) == (0.5, True, False)
    assert result.observation.info == {"success": True, "stage": 2, "stages": 2}
    assert env.get_state_description() == "all 2 pages done"
    assert env.expert_action() is None


def expert(env: ScreenEnvironment) -> Action:
    action = env.expert_action()
    assert action is not None
    return action


@pytest.mark.parametrize(("level", "pages"), [(1, ["click"]), (2, ["click"] * 2), (3, ["click", "type", "click"])])
def test_levels_have_their_pages_and_pay_one_in_all(level: int, pages: list[str]) -> None:
    env = ScreenEnvironment(level=level)
    assert env.max_turns == len(pages)
    env.reset(seed=0)
    names, rewards = [], []
    for _ in pages:
        action = expert(env)
        assert action.call is not None
        names.append(action.call.name)
        rewards.append(env.step(action).reward)
    assert names == pages
    assert rewards == [1 / len(pages)] * len(pages)


def test_the_edges_of_a_button_are_exact() -> None:
    box = Box(10, 20, 4, 3)
    assert [box.contains(x, 21) for x in (9, 10, 13, 13.9, 14)] == [False, True, True, True, False]
    assert [box.contains(11, y) for y in (19, 20, 22, 23)] == [False, True, True, False]
    assert box.contains(*box.centre)


def test_only_the_named_button_counts() -> None:
    env = ScreenEnvironment(level=1)
    for seed in range(20):
        env.reset(seed=seed)
        stage = env._stages[0]
        assert isinstance(stage, ColourStage)
        for name, box in stage.buttons.items():
            env.reset(seed=seed)
            assert env.step(click(*box.centre)).reward == float(name == stage.target)


MISTAKES = [
    (Action(text="hm", parse_error="no JSON object"), "no JSON object"),
    (Action(text="hm"), "no action"),
    (Action(tool_calls=(*click(0, 0).tool_calls, *click(1, 1).tool_calls)), "2 actions in one reply; expected one"),
    (Action.of("swipe", x=1, y=1), "unknown action swipe; use click or type"),
    (Action.of("click", x=1), "click needs the numbers x and y"),
    (Action.of("click", x="1", y=2), "click needs the numbers x and y"),
    (Action.of("click", x=1, y=2, z=3), "click needs the numbers x and y"),
    (click(56, 2), "outside of the screen"),
    (click(-1, 2), "outside of the screen"),
    (Action.of("type"), "type needs a text"),
    (Action.of("type", text="7"), "missed"),
    (click(0, 0), "missed"),
]


@pytest.mark.parametrize(("action", "answer"), MISTAKES)
def test_mistakes_of_the_model_are_answered_and_end_the_episode_once_none_is_forgiven(
    action: Action, answer: str
) -> None:
    env = ScreenEnvironment()
    env.reset(seed=0)
    result = env.step(action)
    assert (result.observation.text, result.reward, result.terminated) == (answer, 0.0, True)
    assert result.observation.info["success"] is False
    env = ScreenEnvironment(retries=2)
    assert env.max_turns == 4
    first = env.reset(seed=0)
    for _ in range(2):
        result = env.step(action)
        assert (result.observation.text, result.done) == (answer, False)
        assert screenshot(result.observation.images[0]) == screenshot(first.images[0])
    assert [env.step(expert(env)).done for _ in range(2)] == [False, True]
    env.reset(seed=0)
    assert [env.step(action).done for _ in range(3)] == [False, False, True]


def test_a_typed_digit_must_be_the_drawn_one() -> None:
    env = ScreenEnvironment(level=3)
    seen = set()
    for seed in range(60):
        env.reset(seed=seed)
        env.step(expert(env))
        stage = env._stages[1]
        assert isinstance(stage, DigitStage)
        seen.add(stage.digit)
        assert env.step(Action.of("type", text=str((int(stage.digit) + 1) % 10))).terminated
    assert seen == set("0123456789")


def test_every_digit_is_drawn_differently() -> None:
    box = Box(10, 10, 20, 20)
    for size in (56, 224):
        pictures = {screenshot(draw(size, DigitStage(str(d), box, Box(0, 0, 4, 4)).shapes())).hash for d in range(10)}
        assert len(pictures) == 10


def test_one_picture_is_pinned() -> None:
    """Seed 7 of the default form: a change here means that every recorded seed now stands for another page."""
    env = ScreenEnvironment()
    first = env.reset(seed=7)
    stage, confirm = env._stages
    assert isinstance(stage, ColourStage)
    assert isinstance(confirm, ConfirmStage)
    assert first.text == "press blue"
    assert stage.buttons == {"blue": Box(2, 6, 24, 20), "red": Box(28, 34, 24, 20), "green": Box(1, 30, 24, 20)}
    assert confirm.button == Box(31, 30, 24, 20)
    pixels = {
        (0, 0): TITLE_BAR,
        (3, 7): SIDE_BAR,  # over the blue button, which begins under it
        (4, 6): (0, 0, 0),
        (4, 7): COLOURS["blue"],
        (24, 24): COLOURS["blue"],
        (26, 6): BACKGROUND,
    }
    assert {point: colour_of(first, point) for point in pixels} == pixels


@pytest.mark.parametrize(("size", "slots", "jitter"), [(56, 2, 2), (84, 3, 2), (224, 2, 2), (100, 3, 50), (57, 2, 0)])
def test_boxes_stay_apart_and_on_the_screen(size: int, slots: int, jitter: int) -> None:
    grid, rng = Grid(size, slots, jitter), random.Random(0)
    for _ in range(50):
        boxes = grid.scatter(rng, slots**2)
        taken: set[tuple[int, int]] = set()
        for box in boxes:
            pixels = {
                (x, y) for x in range(box.left, box.left + box.width) for y in range(box.top, box.top + box.height)
            }
            assert not taken & pixels
            taken |= pixels
        assert all(0 <= x < size and 0 <= y < size for x, y in taken)


def _colours(observation: Observation) -> set[Colour]:
    return {colour for _, colour in observation.images[0].getcolors()}


def test_controls_are_the_same_form_with_one_thing_taken_away() -> None:
    env = ScreenEnvironment(size=84, slots=3, level=1, demonstrator="careless", carelessness=1.0)
    controls = env.controls()
    assert sorted(controls) == ["blank_image", "constant_click", "no_instruction"]
    assert controls["constant_click"] == env.constant_click_action() == click(14, 14)
    blank, untold = controls["blank_image"], controls["no_instruction"]
    assert isinstance(blank, ScreenEnvironment)
    assert isinstance(untold, ScreenEnvironment)
    plain, seen, told = env.reset(seed=1), blank.reset(seed=1), untold.reset(seed=1)
    assert _colours(seen) == {BACKGROUND, TITLE_BAR, SIDE_BAR}
    assert (seen.text, told.text) == (plain.text, "press")
    assert screenshot(told.images[0]) == screenshot(plain.images[0])
    assert plain.text != "press"


# Chance levels. A constant click hits the named colour in 1 of 4 slots and OK in 1 of 4: 1/16 = 0.0625; of 1600
# episodes the standard deviation is 0.006. Pressing any of 3 buttons: 1/3, standard deviation 0.012.


def test_a_constant_click_stays_at_chance_wherever_it_points() -> None:
    env = ScreenEnvironment()
    assert scripted_success(env, lambda turn: env.constant_click_action(), episodes=1600) == pytest.approx(
        1 / 16, abs=0.03
    )
    for point in [(x, y) for x in (14, 28, 42) for y in (14, 42)]:
        assert scripted_success(env, partial(_always, click(*point)), episodes=400) < 0.12


def _always(action: Action, turn: int) -> Action:
    return action


@pytest.mark.parametrize(("carelessness", "expected"), [(0.0, 1.0), (0.5, 2 / 3), (1.0, 1 / 3)])
def test_a_demonstrator_that_does_not_read_solves_a_third(carelessness: float, expected: float) -> None:
    # read with probability 1 - c, else one of three buttons: (1 - c) + c / 3
    env = ScreenEnvironment(demonstrator="careless", carelessness=carelessness)
    assert scripted_success(env, episodes=1600) == pytest.approx(expected, abs=0.06)


def test_the_careless_demonstrator_changes_no_page_and_does_not_waver() -> None:
    careful, careless = (
        ScreenEnvironment(level=3),
        ScreenEnvironment(level=3, demonstrator="careless", carelessness=1.0),
    )
    for seed in range(20):
        assert screenshot(careful.reset(seed=seed).images[0]) == screenshot(careless.reset(seed=seed).images[0])
        assert careless.expert_action() == careless.expert_action()
        assert careful._stages == careless._stages


def test_large_buttons_carry_the_names_of_their_colours() -> None:
    for size, labelled in ((56, False), (224, True)):
        env = ScreenEnvironment(size=size, level=1, palette=["red"], buttons=1)
        picture = env.reset(seed=0).images[0]
        whitest = max(min(pixel) for _, pixel in picture.crop(_inner(env)).getcolors(100_000))
        assert (whitest > 200) == labelled


def _inner(env: ScreenEnvironment) -> tuple[int, int, int, int]:
    stage = env._stages[0]
    assert isinstance(stage, ColourStage)
    box = stage.buttons["red"]
    return box.left + 2, box.top + 2, box.left + box.width - 2, box.top + box.height - 2


def test_the_actions_are_described_where_asked() -> None:
    assert ScreenEnvironment().get_prompt_prefix() == ""
    described = ScreenEnvironment(size=224, describe=True).get_prompt_prefix()
    assert "224 x 224" in described
    assert '{"action":"click","target":"red","x":12,"y":34}' in described


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 40}, "size must be at least 56"),
        ({"size": 56.0}, "screen.size: got 56.0, expected whole number"),
        ({"level": 4}, "screen.level: got 4, expected 1 or 2 or 3"),
        ({"palette": ["red", "blu"]}, "no colour 'blu' in the palette; did you mean 'blue'?"),
        ({"palette": ["red", "red", "blue"], "buttons": 2}, "twice"),
        ({"buttons": 5}, "got 5 buttons, 4 colours, 4 slots"),
        ({"slots": 1, "buttons": 1, "level": 3}, "level 3 needs at least 2 slots"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ScreenEnvironment(**options)
    assert words in str(caught.value)


def test_every_task_of_the_suite_is_the_form_that_it_says() -> None:
    suite = ScreenSuite(retries=1)
    tasks = suite.tasks()
    assert len(tasks) == len({task.id for task in tasks}) == 36
    for task in tasks:
        alone = ScreenEnvironment(**task.checks)
        for seed in range(3):
            assert (
                screenshot(suite.reset(task, seed=seed).images[0]).hash
                == screenshot(alone.reset(seed=seed).images[0]).hash
            )
            assert suite.expert_action() == alone.expert_action()
        assert suite.max_turns >= alone.max_turns
    report = check_environment(suite, episodes=36)
    assert (report.seeded, report.expert_success) == (True, 1.0)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Task("a", checks={"levle": 2}), "a form has no 'levle'; did you mean 'level'"),
        (Task("a", goal="press red", checks={"level": 1}), "describes no form"),
        (Task("a"), "describes no form; expected checks with level, buttons, palette"),
        (Task("a", checks={"buttons": 9}), "buttons must not exceed"),
    ],
)
def test_a_task_that_describes_no_form_is_refused(task: Task, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ScreenSuite().reset(task, seed=0)


def test_a_suite_does_not_read_what_its_tasks_say() -> None:
    with pytest.raises(ConfigError, match="'screen_suite' has no option 'level'"):
        ScreenSuite(level=2)
    with pytest.raises(ConfigError, match="at least 2 slots"):
        ScreenSuite(slots=1)

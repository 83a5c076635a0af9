"""Simple data entry: the rules, the rewards, the levels, and that the page has no say in them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from uirl.environments.conformance import check_environment
from uirl.environments.data_entry.environment import DataEntryEnvironment, render_page
from uirl.environments.data_entry.options import LEVELS
from uirl.environments.data_entry.rows import Progress, distinct_rows, draw_rows
from uirl.environments.registry import create_environment
from uirl.environments.scripted import play_episode
from uirl.environments.session import EnvironmentSession
from uirl.errors import ConfigError
from uirl.images import screenshot
from uirl.types import Action, StepResult

ROWS = [{"first": "Ada", "last": "Abel"}, {"first": "Ben", "last": "Abel"}, {"first": "Ada", "last": "Bauer"}]


def test_a_submission_counts_where_it_equals_a_row_in_all_fields() -> None:
    progress = Progress()
    for first, last in (("Ben", "Abel"), ("Ada", "Bauer"), ("Ben", "Abel"), ("Ben", "Bauer"), ("ada", "Abel")):
        progress.add({"first": first, "last": last}, ROWS)
    progress.add({"first": "Ada", "last": "Abel "}, ROWS)
    progress.add({"first": "Ada"}, ROWS)
    assert progress.as_json() == {"submitted_row_indices": [1, 2, 1], "num_incorrect_submissions": 4}
    assert progress.done == {1, 2}


@pytest.mark.parametrize(
    ("fields", "count"), [(("code",), 10), (("code",), 11), (("first",), 40), (("last", "email"), 100)]
)
def test_rows_differ_and_follow_from_the_seed(fields: tuple[str, ...], count: int) -> None:
    rows = draw_rows(random.Random(3), fields, count)
    assert len({tuple(row.values()) for row in rows}) == count <= distinct_rows(fields)
    assert all(tuple(row) == fields and all(row.values()) for row in rows)
    assert rows == draw_rows(random.Random(3), fields, count) != draw_rows(random.Random(4), fields, count)


def test_a_value_cannot_end_the_script_of_the_page() -> None:
    assert "</script><b>" not in render_page({"rows": ["</script><b>"]})


@pytest.mark.usefixtures("one_browser")
@pytest.mark.parametrize(
    "options",
    [
        {"level": 1, "zoom": 0.5, "max_wrong_submissions": 1, "max_turns": 3},
        {"level": 4, "rows": 1, "fields": ["first", "last"], "max_turns": 4},
    ],
)
def test_it_keeps_the_environment_contract(options: dict[str, Any]) -> None:
    report = check_environment(create_environment("data_entry", options), episodes=2)
    assert report.seeded
    assert report.expert_success == 1.0


@pytest.mark.parametrize("level", [1, 2, 3, 4])
async def test_a_flawless_episode_sums_to_one_in_the_turns_that_are_needed(level: int) -> None:
    session = EnvironmentSession(DataEntryEnvironment(level=level, coordinates="grid_999"))
    for seed in range(1 if level == 4 else 2):
        played = await play_episode(session, seed=seed)
        assert played.success is True
        assert played.total_reward == pytest.approx(1.0)
        assert len(played.actions) == 2 * len(LEVELS[level].fields) * LEVELS[level].rows
        assert played.results[-1].observation.info["progress"] == {
            "submitted_row_indices": list(range(LEVELS[level].rows)),
            "num_incorrect_submissions": 0,
        }
        sizes = {screenshot(image).open().size for seen in played.observations for image in seen.images}
        assert sizes == {LEVELS[level].size}
    await session.close()


async def submit(env: DataEntryEnvironment, text: str) -> StepResult:
    """Types into the one field, which has the focus, and presses Enter."""
    await env.step(Action.of("type", text=text))
    return await env.step(Action.of("keys", keys="enter"))


async def test_every_submission_is_worth_what_the_rules_say() -> None:
    env = DataEntryEnvironment(level=3, listed=5, rows=4, penalty=0.2, max_turns=40)
    await env.reset(seed=1)
    names = [row["first"] for row in env._sheet]
    assert len(names) == 5
    got = [(await submit(env, name)).reward for name in (names[3], names[3], "Nobody", names[0].lower(), names[1])]
    # 1/4 for a new row, nothing for its repetition, -0.2/4 for each wrong one, upper and lower case count
    assert got == pytest.approx([0.25, 0.0, -0.05, -0.05, 0.25])
    assert env.progress() == {"submitted_row_indices": [3, 3, 1], "num_incorrect_submissions": 2}
    third = await submit(env, names[4])
    assert (third.done, third.observation.info["success"]) == (False, False)
    last = await submit(env, names[0])
    assert (last.reward, last.terminated, last.observation.info["success"]) == (0.25, True, True)


async def test_too_many_wrong_submissions_end_an_episode() -> None:
    env = DataEntryEnvironment(level=3, max_wrong_submissions=2, max_turns=40)
    await env.reset(seed=1)
    assert not (await submit(env, "Nobody")).done
    over = await submit(env, "Nobody")
    assert (over.terminated, over.observation.info["success"], over.reward) == (True, False, pytest.approx(-0.05))
    await env.reset(seed=1)
    assert env.progress() == {"submitted_row_indices": [], "num_incorrect_submissions": 0}


async def test_two_submissions_within_one_action_both_count() -> None:
    env = DataEntryEnvironment(level=3)
    await env.reset(seed=1)
    both = await env.step(Action.of("type", text=f"{env._sheet[0]['first']}\n{env._sheet[1]['first']}\n"))
    assert (both.reward, both.terminated, both.observation.info["success"]) == (1.0, True, True)


async def test_the_page_cannot_send_for_the_agent() -> None:
    env = DataEntryEnvironment(level=3)
    await env.reset(seed=1)
    assert env._page is not None
    await env._page.evaluate("""void (() => {
      const field = document.querySelector('input');
      field.value = task.rows[0].first;
      sent = 99;
      window.submissions = task.rows;
      form.dispatchEvent(new Event('submit', {bubbles: true, cancelable: true}));
      Object.defineProperty(HTMLInputElement.prototype, 'value', {get: () => task.rows[1].first});
    })()""")
    looked = await env.step(Action.of("scroll", direction="down"))
    assert env.progress() == {"submitted_row_indices": [], "num_incorrect_submissions": 0}
    assert (looked.reward, looked.done) == (0.0, False)
    await submit(env, "Nobody")
    assert env.progress() == {"submitted_row_indices": [], "num_incorrect_submissions": 1}


async def test_a_clerk_mends_what_was_typed_wrong() -> None:
    env = DataEntryEnvironment(level=4, rows=1, max_turns=30)
    await env.reset(seed=1)
    await env.step(Action.of("type", text="wrong"))
    names = []
    while True:
        action = env.expert_action()
        assert action is not None
        assert action.call is not None
        names.append(action.call.name)
        result = await env.step(action)
        if result.done:
            break
    assert names == ["keys", "type", "click", "type", "click", "type", "click"]
    assert result.observation.info["success"] is True
    assert env.progress()["num_incorrect_submissions"] == 0
    assert env.expert_action() is None


async def test_a_constant_click_does_not_submit() -> None:
    env = DataEntryEnvironment(level=1)
    hits = 0
    for seed in range(6):
        await env.reset(seed=seed)
        await env.step(Action.of("type", text=env._sheet[0]["code"]))
        hits += (await env.step(Action.of("click", x=56, y=36))).reward > 0
    assert 0 < hits < 6, "the button moves"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"level": 1}, "type the code and submit"),
        ({"level": 2}, "type and submit 3 codes"),
        ({"level": 3}, "Copy 2 different rows of the sheet into the form and submit each."),
        ({"level": 4, "rows": 1}, "Copy any row of the sheet into the form and submit each."),
    ],
)
async def test_the_goal_says_what_to_do(options: dict[str, Any], words: str) -> None:
    env = DataEntryEnvironment(**options)
    assert (await env.reset(seed=1)).text == words
    told = DataEntryEnvironment(**options, tell=True)
    text = (await told.reset(seed=1)).text
    copied = told._sheet[: 3 if options["level"] == 2 else options.get("rows", LEVELS[options["level"]].rows)]
    assert all(value in text for row in copied for value in row.values())
    await told.close()
    await env.close()


async def test_what_is_sent_after_a_reload_counts() -> None:
    env = DataEntryEnvironment(level=3, actions=("click", "type", "keys", "goto"))
    await env.reset(seed=3)
    for sent in (1, 2):
        for _ in range(12):  # far more than a row needs
            action = env.expert_action()
            assert action is not None
            result = await env.step(action)
            if not env.page_state["fields"][0]["value"]:  # the form is empty: it was submitted
                break
        assert len(env.progress()["submitted_row_indices"]) == sent
        if sent == 1:
            await env.step(Action.of("goto", url="http://app.localhost/"))
            assert len(env.progress()["submitted_row_indices"]) == 1, "a reload sends nothing"
    assert (result.terminated, result.observation.info["success"]) == (True, True)
    assert env.progress()["num_incorrect_submissions"] == 0
    await env.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"level": 3, "listed": 41}, "listed <= 40"),
        ({"rows": 5, "listed": 4}, "1 <= rows <= listed"),
        ({"fields": ["frist"]}, "did you mean 'first'"),
        ({"fields": ["first", "first"]}, "fields are different"),
        ({"level": 1, "fields": ["first", "last"]}, "on a slip exactly one"),
        ({"patience": 1}, "no option 'patience'; did you mean 'max_wrong_submissions'?"),
        ({"level": 1, "width": 40}, "at least 56 pixels"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        create_environment("data_entry", options)

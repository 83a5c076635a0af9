"""Tokens with their figures, coordinates among them, and the heat patch."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image

from tests.viewer.runs import make_run, picture, trajectory, turn
from uirl.parsers import create_parser
from uirl.parsers.registry import PARSERS
from uirl.storage import LearnedTokens, TrajectoryStore
from uirl.types import Action, Observation, PictureTransform, ToolCall
from uirl.viewer.pictures import Fed
from uirl.viewer.tokens import Vocabulary, coordinates_of, heat_of

WORDS = ['{"x":', "4", "1", ',"y":', "15", "}"]
CALL = (ToolCall("click", {"x": 41, "y": 15}),)


def reply(words, call=CALL, log_probs=None):
    ids = tuple(range(len(words)))
    log_probs = tuple(log_probs or [-0.1] * len(words))
    return turn(response_ids=ids, rollout_log_probs=log_probs, action=Action("".join(words), call))


def found(words, call=CALL):
    return [(one.axis, one.value, one.start, one.stop) for one in coordinates_of(reply(words, call), words)]


def test_coordinates_stand_in_several_tokens_or_one():
    assert found(WORDS) == [("x", 41, 1, 3), ("y", 15, 4, 5)]
    x, y = coordinates_of(reply(WORDS, log_probs=[-9, -0.5, -0.25, -9, -1, -9]), WORDS)
    assert x.probability == pytest.approx(math.exp(-0.75))  # 0.472
    assert y.probability == pytest.approx(math.exp(-1))


@pytest.mark.parametrize(
    ("words", "places"),
    [
        (["at 41, 15 I see ", *WORDS], [("x", 41, 2, 4), ("y", 15, 5, 6)]),  # numbers of a thought are others
        (['{"y":', "15", ',"x":', "41", "}"], [("x", 41, 3, 4), ("y", 15, 1, 2)]),
        (["click(x=", "41", ", y=", "15", ")"], [("x", 41, 1, 2), ("y", 15, 3, 4)]),
        (['"x":41.0,"y":15'], [("x", 41, 0, 1), ("y", 15, 0, 1)]),
        (['"x":', "414", ',"y":', "151"], []),
        (['"max":', "41", ',"y":', "15"], [("y", 15, 3, 4)]),
    ],
)
def test_a_number_counts_where_its_name_stands_before_it(words, places):
    assert found(words) == places


def test_pairs_have_no_names():
    call = (ToolCall("drag", {"start_coordinate": [7, 7], "end_coordinate": [7, 9]}),)
    words = ["from [", "7", ", ", "7", "] to [", "7", ",", "9", "]"]
    assert found(words, call) == [("x", 7, 1, 2), ("y", 7, 3, 4), ("x", 7, 5, 6), ("y", 9, 7, 8)]


@pytest.mark.parametrize("behind", [', "text": "9"}', ', "duration": 9}'])
def test_a_pair_stands_beside_itself_whatever_numbers_stand_behind_it(behind):
    call = (ToolCall("type", {"coordinate": [7, 9], "text": "9"}),)
    assert found(['{"coordinate": [', "7", ", ", "9", "]", behind], call) == [("x", 7, 1, 2), ("y", 9, 3, 4)]


def test_a_pair_behind_its_name_counts_before_one_that_is_typed():
    call = (ToolCall("type", {"coordinate": [7, 9], "text": "[7, 9]"}),)
    words = ['{"coordinate": [', "7", ",", "9", '], "text": "[', "7", ",", "9", ']"}']
    assert found(words, call) == [("x", 7, 1, 2), ("y", 9, 3, 4)]


WAYS = [
    ("click", {"x": 123, "y": 45}),
    ("drag", {"x": 1, "y": 2, "to_x": 311, "to_y": 5}),
    ("click", {"coordinate": [123, 45]}),
    ("drag", {"start_coordinate": [10, 20], "end_coordinate": [20, 10]}),
]


@pytest.mark.parametrize("arguments", [way[1] for way in WAYS], ids=str)
@pytest.mark.parametrize("name", sorted(set(PARSERS) - {"text"}))  # plain text has no calls
def test_the_place_of_a_click_is_found_in_the_format_of_every_parser(name, arguments):
    parser = create_parser(name)
    call = ToolCall("drag" if len(arguments) == 4 else "click", arguments, "a1b2c3d4e" if name == "mistral" else "")
    text = parser.render(Action("", (call,), "from 123 to 45"))
    words = list(text)
    one = reply(words, parser.parse(text).tool_calls)
    written = [number for value in arguments.values() for number in (value if isinstance(value, list) else [value])]
    assert [place.value for place in coordinates_of(one, words)] == written
    assert ["".join(words[place.start : place.stop]) for place in coordinates_of(one, words)] == list(map(str, written))


@pytest.mark.parametrize("text", ["1" * 400_000 + ".1.1", "7" + " " * 400_000 + "x 7"], ids=["digits", "space"])
def test_a_reply_that_is_made_to_be_slow_is_read_in_linear_time(text):
    call = (ToolCall("click", {"coordinate": [7, 7]}),)
    assert coordinates_of(reply([text], call), [text]) == []  # with patterns that go back it would take minutes


def test_without_text_or_log_probs_there_are_none():
    assert coordinates_of(reply(WORDS), None) == []
    assert coordinates_of(turn(rollout_log_probs=()), ["a", "b"]) == []


def test_the_heat_patch_is_as_wide_as_its_probability_says():
    # p = 0.5 for each: sigma = 1 / (sqrt(2 pi) 0.5) = 0.798
    sure = coordinates_of(reply(WORDS, log_probs=[0, math.log(0.5), 0, 0, math.log(0.5), 0]), WORDS)
    heat = heat_of(sure, Fed("h", (56, 56)), 0, None)
    assert (heat["x"], heat["y"], heat["image"]) == (41, 15, 0)
    assert heat["radius"] == pytest.approx(0.798, abs=1e-3)
    assert heat["probability"] == pytest.approx(0.25)
    on_grid = heat_of(sure, Fed("h", (999, 1998)), 0, 999)
    assert on_grid["radius_y"] == pytest.approx(2 * on_grid["radius_x"])
    unsure = coordinates_of(reply(WORDS, log_probs=[-9] * 6), WORDS)
    assert heat_of(unsure, Fed("h", (56, 56)), 0, None)["radius"] <= 56
    assert heat_of(sure, None, None, None) is None
    assert heat_of([], Fed("h", (56, 56)), 0, None) is None


def test_a_character_of_several_tokens_stands_with_the_last(tokenizer, tmp_path):
    place = tmp_path / "checkpoints" / "step_000001" / "policy"
    place.mkdir(parents=True)
    tokenizer.save(str(place / "tokenizer.json"))
    ids = tokenizer.encode("né 漢 x").ids
    words = Vocabulary(tmp_path).texts((), ids)
    assert len(words) == len(ids)
    assert "".join(words) == "né 漢 x"
    assert words[:3] == ["n", "", "é"]
    broken = tokenizer.encode("漢").ids[:2] + tokenizer.encode("ok").ids
    assert Vocabulary(tmp_path).texts((), broken)[-1] == "k"
    assert Vocabulary(tmp_path).texts((), [ids[0], 10**9, -1]) == ["n", "", ""]


def test_a_run_without_a_tokenizer_shows_ids(tmp_path):
    assert Vocabulary(tmp_path).texts((), [1]) is None
    (tmp_path / "checkpoints" / "step_000001" / "policy").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_000001" / "policy" / "tokenizer.json").write_text("{}")
    assert Vocabulary(tmp_path).texts((), [1]) is None


def test_tokens_are_answered_with_what_is_known(client, run, tokenizer):
    words = ["a", "{", '"', "x", '"', ":", "5", "}"]
    ids = tuple(tokenizer.token_to_id(word) for word in words)
    act = Action('a{"x":5}', (ToolCall("click", {"x": 5, "y": 6}),))
    one = turn(shot=picture(), context_ids=ids[:2], response_ids=ids, rollout_log_probs=(-0.5,) * 8, action=act)
    made = make_run(
        run.parent / "worded", [trajectory("t", [one, turn(context_ids=(), response_ids=(), rollout_log_probs=())])]
    )
    place = made / "checkpoints" / "step_000001" / "policy"
    place.mkdir(parents=True)
    tokenizer.save(str(place / "tokenizer.json"))
    answer = client.get("/api/runs/worded/trajectories/t/tokens?turn=0").json()
    assert [token["text"] for token in answer["tokens"]] == words
    assert answer["tokens"][0]["log_prob"] == -0.5
    assert answer["tokens"][0]["learner_log_prob"] is None
    assert [(one["axis"], one["start"], one["stop"]) for one in answer["coordinates"]] == [("x", 6, 7)]
    whole = client.get("/api/runs/worded/trajectories/t/tokens?turn=0&context=1").json()
    assert [token["mask"] for token in whole["tokens"]] == [0, 0] + [1] * 8
    assert whole["coordinates"][0]["start"] == 8
    assert client.get("/api/runs/worded/trajectories/t/tokens?turn=1").json()["tokens"] == []
    assert client.get("/api/runs/worded/trajectories/t/tokens?turn=2").status_code == 404


def test_what_an_update_made_of_each_token_is_shown(client, run):
    one, two = turn(rollout_log_probs=(-0.5, -0.25)), turn(rollout_log_probs=(-1.0, -2.0))
    made = make_run(run.parent / "learned", [trajectory("t", [one, two]), trajectory("u")])
    figures = LearnedTokens(
        "t",
        advantages=np.float32([1, 1, 1, 3]),
        old_log_probs=np.float32([-0.5, -0.25, -1.5, -2.0]),
        log_probs=np.float32([-0.5, -0.25, -1.0, -2.0]),
        entropies=np.float32([0.1, 0.2, 0.3, 0.4]),
    )
    with TrajectoryStore(made / "trajectories.sqlite") as store:
        store.add_learned([figures], step=5, version=4)
    tokens = client.get("/api/runs/learned/trajectories/t/tokens?turn=1").json()["tokens"]
    first = tokens[0]
    assert first["ratio"] == pytest.approx(math.exp(0.5))  # -1.0 now, -1.5 when the update began
    assert first["gap"] == pytest.approx(-0.5)  # the learner's -1.5, the engine's -1.0
    assert (first["advantage"], tokens[1]["advantage"]) == (1, 3)
    assert first["learner_log_prob"] == -1
    assert first["entropy"] == pytest.approx(0.3, abs=1e-3)
    assert first["weight"] is None
    shown = client.get("/api/runs/learned/trajectories/t").json()
    assert (shown["learned"], shown["learned_in"]) == (True, 5)
    assert client.get("/api/runs/learned/trajectories/u").json()["learned"] is False
    members = client.get("/api/runs/learned/groups/g").json()["members"]
    assert [one["advantage"] for one in members] == [1.5, None]


def test_a_turn_shows_the_picture_that_the_model_was_fed(client, run):
    shot = picture(size=(80, 60))
    half = PictureTransform((80, 60), (40, 30), window=(10, 0, 20, 30))
    fed = turn("x", shot, pictures=(half,), starts_segment=True)
    again = turn("y", observation=Observation("same", (shot,)), context_images=())  # fed by the turn before
    make_run(run.parent / "fed", [trajectory("t", [fed, again])])
    for number in range(2):
        shown = client.get(f"/api/runs/fed/trajectories/t/turns/{number}").json()
        (one,) = shown["fed"]
        assert (one["raw_size"], one["fed_size"]) == ([80, 60], [20, 30])
        # the middle of the pixel 5, 6 is 5.5, 6.5; half of it, less the window's 10, is -7.25, 3.25
        assert shown["marks"][0]["fed"] == [-7.75, 2.75]
        with Image.open(io.BytesIO(client.get(one["url"]).content)) as image:
            assert image.size == (20, 30)

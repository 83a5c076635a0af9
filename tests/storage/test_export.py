"""Chat messages out of stored trajectories."""

import dataclasses
import json
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.storage.episodes import PNG, episode, full_trajectory
from uirl.errors import ConfigError, StorageError
from uirl.images import Screenshot
from uirl.rollout.conversation import messages_of
from uirl.storage import TrajectoryStore, export_sft
from uirl.storage.export import _schema, _with_pictures, to_parquet
from uirl.types import Action, Failure, Observation, ToolCall, ToolResult, Turn


@pytest.fixture
def store(tmp_path):
    with TrajectoryStore(tmp_path / "trajectories.sqlite") as opened:
        yield opened


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_solved_trajectories_become_messages_with_their_pictures(store, tmp_path):
    failed = episode("failed")
    failed.failure = Failure("engine", "gone")
    shot = PNG + b"picture"
    store.add_many([episode("a", shot=shot), episode("b", success=False), episode("c", success=None), failed], step=1)
    path = tmp_path / "out" / "sft.jsonl"
    assert export_sft(store, path, system_prompt="be quick") == 1
    image = f"sft_images/{Screenshot(shot).hash}.png"
    assert lines(path) == [
        {
            "id": "a",
            "task": "a",
            "reward": 1.0,
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "be quick"}]},
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "look"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "reply"}]},
            ],
            "images": [image],
        }
    ]
    assert (path.parent / image).read_bytes() == shot


def test_any_choice_of_trajectories(store, tmp_path):
    store.add_many([episode("a"), episode("b", success=False)], step=1)
    store.add(full_trajectory(), step=2)
    assert export_sft(store, tmp_path / "x.jsonl", where=lambda row: row.step == 2) == 1
    (line,) = lines(tmp_path / "x.jsonl")
    said = ["tool", "tool", "user", "assistant", "user", "assistant"]
    assert [message["role"] for message in line["messages"]] == said
    endings = [name.rpartition(".")[2] for name in line["images"]]
    assert endings == ["png", "jpg", "png"]
    assert len(list((tmp_path / "x_images").iterdir())) == 2
    assert export_sft(store, tmp_path / "x.jsonl", where=lambda row: False) == 0
    assert lines(tmp_path / "x.jsonl") == []


def test_texts_alone_are_strings_in_the_order_of_the_conversation(store, tmp_path):
    call = '<tool_call>\n{"name": "look", "arguments": {"key": "fig"}}\n</tool_call>'
    made = episode("a")
    first = dataclasses.replace(made.turns[0], action=Action(call, (ToolCall("look", {"key": "fig"}),)))
    results = (ToolResult("look", {"key": "fig"}, True, {"n": 7}, "c0"), ToolResult("look", result="8"))
    answered = [
        dataclasses.replace(first, observation=Observation(text, tool_results=results), action=Action("7"))
        for text in ("", "well?")
    ]
    silent = dataclasses.replace(answered[0], observation=Observation())
    made.turns = [dataclasses.replace(first, info={"call": "a word of the environment"}), *answered, silent]
    store.add(made, step=1)
    assert export_sft(store, tmp_path / "x.jsonl") == 1
    (line,) = lines(tmp_path / "x.jsonl")
    told = [("tool", '{"n": 7}'), ("tool", "8")]
    said = [("user", "look"), ("assistant", call), *told, ("assistant", "7"), *told, ("user", "well?")]
    said += [("assistant", "7"), ("user", "")]
    assert line["messages"] == [{"role": role, "content": text} for role, text in [*said, ("assistant", "7")]]
    assert "images" not in line
    # what the policy was shown, in the words of the one who showed it
    shown = [[(m.role, m.text) for m in messages_of(turn.observation)] for turn in made.turns]
    assert shown == [said[:1], told, said[5:8], said[9:]]


def recorded(number, text, said, *, after=None, new=False, sent=True, role="user"):
    """A turn of an agent that the endpoint recorded."""
    info = {"call": number, "messages": [{"role": role, "text": text, "images": 0}], "sent": sent}
    info |= {} if after is None else {"after": after}
    return Turn(Observation("?"), (1,), (2,), action=Action(said), starts_segment=new, info=info)


def test_a_recorded_agent_is_an_example_per_segment(store, tmp_path):
    """A branch ended before what it goes on from, and a reply was never seen."""
    branch = recorded(2, "other", "r2", after=0, new=True)
    first, goes_on = recorded(0, "hi", "r0", new=True, role="system"), recorded(1, "more", "r1", after=0)
    unseen = recorded(3, "lost", "r3", after=1, new=True, sent=False)
    store.add(dataclasses.replace(episode("a"), turns=[branch, first, goes_on, unseen]), step=1)
    assert export_sft(store, tmp_path / "x.jsonl") == 2
    begin = [("system", "hi"), ("assistant", "r0")]
    expected = [[*begin, ("user", "other"), ("assistant", "r2")], [*begin, ("user", "more"), ("assistant", "r1")]]
    found = lines(tmp_path / "x.jsonl")
    assert [[(m["role"], m["content"]) for m in line["messages"]] for line in found] == expected
    assert export_sft(store, tmp_path / "x.jsonl", each_reply=True, tools=[{"name": "f"}]) == 3
    found = lines(tmp_path / "x.jsonl")
    said = [(len(line["prompt"]), line["completion"][0]["content"], line["tools"]) for line in found]
    tools = '[{"name": "f"}]'
    assert said == [(3, "r2", tools), (1, "r0", tools), (3, "r1", tools)]  # what a branch goes on from is learned once


def test_an_example_per_reply_ends_with_it(store, tmp_path):
    store.add_many([full_trajectory(), episode("a")], step=1)
    path = tmp_path / "x.jsonl"
    export_sft(store, tmp_path / "whole.jsonl", where=lambda row: True)
    assert export_sft(store, path, where=lambda row: True, each_reply=True) == 3
    for whole in lines(tmp_path / "whole.jsonl"):
        examples = [line for line in lines(path) if line["id"] == whole["id"]]
        replies = [i for i, message in enumerate(whole["messages"]) if message["role"] == "assistant"]
        assert len(examples) == len(replies)
        for at, line in zip(replies, examples, strict=True):
            assert line["prompt"] + line["completion"] == whole["messages"][: at + 1]
            assert len(line["completion"]) == 1
            parts = [part for message in line["prompt"] for part in message["content"] if part["type"] == "image"]
            assert [Path(name).name for name in line["images"]] == [
                Path(name).name for name in whole["images"][: len(parts)]
            ]


def test_what_has_a_picture_comes_first_and_every_line_has_the_same_fields(store, tmp_path):
    made = episode("a")
    made.turns[0] = dataclasses.replace(made.turns[0], observation=Observation("a\ud800b \U0001f600 \0"))
    store.add_many([made, episode("b", shot=PNG), episode("c")], step=1)
    export_sft(store, tmp_path / "x.jsonl")
    written = lines(tmp_path / "x.jsonl")
    assert [(line["id"], len(line["images"])) for line in written] == [("b", 1), ("a", 0), ("c", 0)]
    contents = [message["content"] for line in written for message in line["messages"]]
    assert all(isinstance(content, list) and content for content in contents)
    assert contents[2] == [{"type": "text", "text": "a\ufffdb \U0001f600 \0"}]  # half a character is not written
    export_sft(store, tmp_path / "x.jsonl", order=lambda row: -ord(row.id))
    assert [line["id"] for line in lines(tmp_path / "x.jsonl")] == ["b", "c", "a"]


def test_a_turn_without_the_text_of_its_action_cannot_be_learned_from(store, tmp_path):
    made = episode("a")
    made.turns[0] = dataclasses.replace(made.turns[0], action=Action.of("click", x=1))
    store.add(made, step=1)
    with pytest.raises(StorageError, match=r"turns\[0\] has tool calls but no text"):
        export_sft(store, tmp_path / "x.jsonl")
    assert not (tmp_path / "x.jsonl").exists()


def test_pictures_that_were_not_kept_are_missed(tmp_path):
    with TrajectoryStore(tmp_path / "t.sqlite", keep_images=False) as store:
        store.add(episode("a", shot=b"x"), step=1)
        with pytest.raises(StorageError, match=r"was not kept; store runs with logging\.store_images=true"):
            export_sft(store, tmp_path / "x.jsonl")


def test_columns_of_parquet_are_said_in_the_way_of_datasets(tmp_path, monkeypatch):
    """What needs no pyarrow; tests/clients/test_parquet.py reads whole files with datasets."""
    text, parts = {"dtype": "string", "_type": "Value"}, [{"type": "text", "text": "x"}]
    shown = {"id": "a", "reward": 1.0, "messages": [{"role": "user", "content": parts}], "images": ["d/x.png"]}
    plain = {"prompt": [], "completion": [{"role": "assistant", "content": "x"}]}
    said = []
    for line in (shown, plain):
        pa = MagicMock()
        _schema(pa, line)
        assert [call.args[0] for call in pa.field.call_args_list] == list(line)
        said.append(json.loads(pa.schema.call_args.kwargs["metadata"]["huggingface"])["info"]["features"])
    assert said[0] == {
        "id": text,
        "reward": {"dtype": "float64", "_type": "Value"},
        "messages": [{"role": text, "content": [{"type": text, "text": text}]}],
        "images": [{"_type": "Image"}],
    }
    assert said[1] == {name: [{"role": text, "content": text}] for name in plain}
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.png").write_bytes(b"1")
    assert _with_pictures(shown, tmp_path) == {**shown, "images": [{"bytes": b"1", "path": "x.png"}]}
    assert _with_pictures(plain, tmp_path) == plain
    with pytest.raises(StorageError, match=r"d/y\.png is missing: .*; export the episodes again"):
        _with_pictures({"images": ["d/y.png"]}, tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"Parquet needs pyarrow: pip install pyarrow \(or uirl\[parquet\]\)"):
        to_parquet(tmp_path / "x.jsonl", tmp_path / "x.parquet")

"""Chat messages out of stored trajectories."""

import dataclasses
import json

import pytest

from tests.storage.episodes import PNG, episode, full_trajectory
from uirl.errors import StorageError
from uirl.images import Screenshot
from uirl.storage import TrajectoryStore, export_sft
from uirl.types import Action, Failure


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
                {"role": "system", "content": "be quick"},
                {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "look"}]},
                {"role": "assistant", "content": "reply"},
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
    assert [message["role"] for message in line["messages"]] == ["user", "assistant"] * 2
    endings = [name.rpartition(".")[2] for name in line["images"]]
    assert endings == ["png", "jpg", "png"]
    assert len(list((tmp_path / "x_images").iterdir())) == 2
    assert export_sft(store, tmp_path / "x.jsonl", where=lambda row: False) == 0
    assert lines(tmp_path / "x.jsonl") == []


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

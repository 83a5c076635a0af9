"""Weights on their way to another process: named as checkpoints name them, whole, and gone afterwards."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import tiny_model
from uirl.config import LoraConfig, ModelConfig
from uirl.errors import ContractError, StorageError
from uirl.inference import weight_files, workers
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.weight_files import WeightFiles
from uirl.inference.workers import RayStore
from uirl.learner import Policy
from uirl.learner.lora import peft_config, peft_weights
from uirl.runtime import scratch


def read(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


@pytest.mark.parametrize("architecture", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "lm"])
def test_names_and_values_are_those_of_a_saved_checkpoint(architecture: str, tmp_path: Path) -> None:
    loaded = tiny_model("uirl/tiny-lm") if architecture == "lm" else tiny_model(architecture=architecture)
    loaded.save(tmp_path / "saved")
    files = WeightFiles(tmp_path)
    ours, saved = read(files.write_weights(loaded.model.named_parameters(), loaded)), read(tmp_path / "saved")
    assert ours.keys() == saved.keys()
    assert all(torch.equal(ours[name], saved[name]) for name in saved)
    files.close()


def test_large_weights_come_in_several_files(lm: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_files, "SHARD_BYTES", 100_000)
    files = WeightFiles(tmp_path)
    folder = files.write_weights(lm.model.named_parameters(), lm)
    shards = list(folder.glob("*.safetensors"))
    assert len(shards) > 3
    largest = max(p.nbytes for p in lm.model.parameters())
    assert all(path.stat().st_size < max(100_000, largest) + 20_000 for path in shards)
    assert sum(t.nbytes for t in read(folder).values()) == sum(p.nbytes for p in lm.model.parameters())


@pytest.mark.parametrize("where", ["files", "store"])
def test_weights_that_are_made_on_the_way_are_held_a_file_at_a_time(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_files, "SHARD_BYTES", 4000)
    alive: list[int] = []
    made: list[weakref.ref[torch.Tensor]] = []

    def merged() -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(32):
            tensor = torch.full((250,), float(number))
            made.append(weakref.ref(tensor))
            alive.append(sum(one() is not None for one in made))
            yield f"w{number}", tensor

    if where == "files":
        assert len(read(WeightFiles(tmp_path).write_snapshot(merged(), 1, None).folder)) == 32
    else:
        monkeypatch.setattr(workers, "import_ray", lambda: SimpleNamespace(put=len))
        assert RayStore().write_snapshot(merged(), 1, None).references == [4] * 8
    assert max(alive) <= 6, "four that go together, the next one and the one that it is made from"


def test_tied_weights_may_be_given_twice(lm: LoadedModel, tmp_path: Path) -> None:
    every = dict(lm.model.named_parameters(remove_duplicate=False))
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= every.keys()
    files = WeightFiles(tmp_path)
    written = read(files.write_weights(every.items(), lm))
    assert torch.equal(written["lm_head.weight"], written["model.embed_tokens.weight"])


def test_what_is_not_the_model_is_refused_before_anything_is_written(lm: LoadedModel, tmp_path: Path) -> None:
    files = WeightFiles(tmp_path)
    good = dict(lm.model.named_parameters())
    wrong = {
        "does not have": {**good, "nonsense.weight": torch.zeros(1)},
        "got shape": {**good, "model.norm.weight": torch.zeros(3)},
        "lacks 1 of": {name: t for name, t in good.items() if name != "model.norm.weight"},
    }
    for message, weights in wrong.items():
        with pytest.raises(ContractError, match=message):
            files.write_weights(weights.items(), lm)
    assert sorted(path.name for path in files.path.iterdir()) == ["lock"]


def test_a_model_with_adapters_is_written_as_its_base_and_its_adapter(tmp_path: Path) -> None:
    plain = tiny_model("uirl/tiny-lm")
    policy = Policy(tiny_model("uirl/tiny-lm"), lora_config=LoraConfig(r=4))
    files = WeightFiles(tmp_path)
    base = read(files.write_weights(policy.weights(), policy.loaded))
    assert base.keys() == dict(plain.model.named_parameters()).keys()
    folder = files.write_adapter(peft_weights(policy.model), peft_config(policy.model, LoraConfig(r=4, lora_alpha=6)))
    stored = json.loads((folder / "adapter_config.json").read_text())
    assert (stored["r"], stored["lora_alpha"], stored["peft_type"]) == (4, 6, "LORA")
    names = read(folder).keys()
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names
    assert not [name for name in names if "default" in name]


def test_a_folder_without_room_is_told(lm: LoadedModel, tmp_path: Path) -> None:
    files = WeightFiles(tmp_path)
    (files.path / "000001").write_text("in the way")
    with pytest.raises(StorageError, match="000001"):
        files.write_weights(lm.model.named_parameters(), lm)
    with pytest.raises(StorageError, match="weights_dir"):
        WeightFiles(files.path / "lock")


def test_without_a_folder_it_is_a_ram_disk_with_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ram, disk = tmp_path / "ram", tmp_path / "disk"
    ram.mkdir()
    disk.mkdir()
    monkeypatch.setattr(scratch, "RAM_DISK", ram)
    monkeypatch.setattr(scratch.tempfile, "gettempdir", lambda: str(disk))
    assert WeightFiles(None, size=1).path.parent == ram
    assert WeightFiles(None, size=2**60).path.parent == disk


def test_folders_go_with_their_owner(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path)
    path = files.path
    assert path.is_dir()
    files.close()
    files.close()
    assert not path.exists()
    forgotten = WeightFiles(tmp_path)
    path = forgotten.path
    del forgotten
    assert not path.exists()


@pytest.mark.parametrize("name", ["uirl/tiny-lm", "uirl/tiny-vlm"])
def test_a_model_without_weights_says_the_same_about_tokens(name: str, tmp_path: Path) -> None:
    tiny_model(name).save(tmp_path)
    config = ModelConfig(model_name=str(tmp_path), device="cpu", dtype="bfloat16")
    full, hollow = load_model(config), load_model(config, weights=False)
    assert hollow.device.type == "meta"
    for field in ("banned_ids", "end_ids", "axes", "dtype", "name"):
        assert getattr(hollow, field) == getattr(full, field)
    assert {n: p.shape for n, p in hollow.model.named_parameters()} == {
        n: p.shape for n, p in full.model.named_parameters()
    }
    assert load_model(ModelConfig(model_name=name, device="cpu"), weights=False).device.type == "cpu"


def test_a_snapshot_is_read_as_often_as_it_is_wanted_and_then_goes(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path)
    tied = torch.arange(4.0)
    snapshot = files.write_snapshot(iter([("a", tied), ("b", torch.ones(2, 3)), ("c", tied)]), 7, {"r": 4})
    assert (snapshot.version, snapshot.adapter) == (7, {"r": 4})
    for _ in range(2):
        read = dict(snapshot)
        assert {name: tensor.tolist() for name, tensor in read.items()} == {
            "a": [0.0, 1.0, 2.0, 3.0],
            "b": [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
            "c": [0.0, 1.0, 2.0, 3.0],
        }
    snapshot.remove()
    snapshot.remove()
    assert read["b"].sum() == 6  # whoever reads still can
    files.close()

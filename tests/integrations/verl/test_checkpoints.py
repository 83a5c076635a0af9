"""Checkpoints both ways: shards of verl's as a HF folder, and the local trainer's as a folder verl loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.conftest import tiny_model
from uirl.config import ConfigStore, ModelConfig
from uirl.errors import CheckpointError
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.integrations.verl.models import check_model_folder, export_checkpoint, find_checkpoint, model_folder
from uirl.learner import Learner, Policy, save_checkpoint

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("uirl/tiny-lm", hidden_size=32, intermediate_size=48)


def saved(loaded: LoadedModel, home: Path, ranks: int, state: dict[str, Any], *, replicas: int = 1) -> Path:
    """`global_step_7` as the ranks of verl's FSDP engines leave it: uneven shards along the first axis."""
    actor = home / "global_step_7" / "actor"
    loaded.save(actor / "huggingface")
    (actor / "huggingface" / "model.safetensors").unlink()
    world = ranks * replicas
    for rank in range(world):
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        try:
            shard = {name: _piece(t, rank % ranks, ranks, replicas) for name, t in state.items()}
            torch.save(shard, actor / f"model_world_size_{world}_rank_{rank}.pt")
        finally:
            dist.destroy_process_group()
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": world}))
    (home / "latest_checkpointed_iteration.txt").write_text("7")
    return home / "global_step_7"


def _piece(tensor: torch.Tensor, rank: int, ranks: int, replicas: int) -> DTensor:
    pieces = tensor.chunk(ranks)
    piece = pieces[rank] if rank < len(pieces) else tensor[:0]
    shape, names = ((ranks,), ("fsdp",)) if replicas == 1 else ((replicas, ranks), ("ddp", "fsdp"))
    placements = [Shard(0)] if replicas == 1 else [Replicate(), Shard(0)]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    return DTensor.from_local(
        piece.clone(), mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


@pytest.mark.parametrize(("ranks", "replicas"), [(3, 1), (2, 2)])
def test_shards_become_the_model_to_the_last_bit(model: LoadedModel, tmp_path: Path, ranks: int, replicas: int) -> None:
    state = {name: t + 0.25 for name, t in model.model.state_dict().items()}
    step = saved(model, tmp_path, ranks, state, replicas=replicas)
    folder = export_checkpoint(step)
    assert folder == tmp_path / "step_000007"
    loaded = load_model(ModelConfig(local_path=str(folder), device="cpu"))
    own = loaded.model.state_dict()
    assert own.keys() == state.keys()
    assert all(torch.equal(own[name], state[name]) for name in own)
    assert loaded.tokenizer.chat_template == model.tokenizer.chat_template


def test_adapters_are_merged(model: LoadedModel, tmp_path: Path) -> None:
    base = tiny_model("uirl/tiny-lm", hidden_size=32, intermediate_size=48)
    peft = get_peft_model(base.model, LoraConfig(r=4, lora_alpha=12, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    step = saved(model, tmp_path, 1, peft.state_dict())
    (step / "actor" / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 12}))
    loaded = load_model(ModelConfig(local_path=str(export_checkpoint(step)), device="cpu"))
    expected = peft.merge_and_unload().state_dict()
    for name, tensor in loaded.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6)


def test_a_checkpoint_is_found_from_wherever_one_points(model: LoadedModel, tmp_path: Path) -> None:
    home = tmp_path / "checkpoints"
    step = saved(model, home, 1, model.model.state_dict())
    for path in (step, step / "actor", home, tmp_path):
        assert find_checkpoint(path) == step
    shutil.rmtree(step)
    with pytest.raises(CheckpointError, match="names global_step_7, which is not there"):
        find_checkpoint(tmp_path)


def test_damage_is_told_before_anything_is_written(model: LoadedModel, tmp_path: Path) -> None:
    step = saved(model, tmp_path, 2, model.model.state_dict())
    actor = step / "actor"
    second = actor / "model_world_size_2_rank_1.pt"
    whole = second.read_bytes()
    second.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="is damaged"):
        export_checkpoint(step)
    second.unlink()
    with pytest.raises(CheckpointError, match="Copy the shards of all ranks"):
        export_checkpoint(step)
    (actor / "fsdp_config.json").unlink()
    with pytest.raises(CheckpointError, match="For Megatron add hf_model"):
        export_checkpoint(step)
    with pytest.raises(CheckpointError, match="holds no checkpoint of verl's"):
        export_checkpoint(tmp_path / "nowhere")
    assert not list(tmp_path.glob("step_*"))


def test_shards_of_another_model_are_refused(model: LoadedModel, tmp_path: Path) -> None:
    state = dict(model.model.state_dict())
    gone = state.pop("model.norm.weight")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape None, expected \(32,\)"):
        export_checkpoint(saved(model, tmp_path / "less", 1, state))
    state["model.norm.weight"] = torch.cat([gone, gone])
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has shape \(64,\), expected \(32,\)"):
        export_checkpoint(saved(model, tmp_path / "wide", 1, state))


def test_a_local_checkpoint_becomes_a_folder_verl_loads(tmp_path: Path) -> None:
    store = ConfigStore().override(["model.model_name=uirl/tiny-lm", "model.device=cpu", "model.tiny.hidden_size=32"])
    learner = Learner(Policy.from_config(store), store, None)  # type: ignore[arg-type]
    checkpoint = save_checkpoint(tmp_path / "run" / "checkpoints" / "step_000004", learner, {})
    for path in (checkpoint, tmp_path / "run"):
        target = tmp_path / f"for-verl-{path.name}"
        again = store.override([f"model.local_path={path}"])
        assert model_folder(again.model, target) == target
        check_model_folder(target)
        loaded = load_model(ModelConfig(local_path=str(target), device="cpu")).model.state_dict()
        own = learner.policy.model.state_dict()
        assert all(torch.equal(loaded[name], own[name]) for name in own)


def test_folders_and_ids_of_others_are_handed_on(model: LoadedModel, tmp_path: Path) -> None:
    assert (
        model_folder(ConfigStore().override(["model.model_name=Qwen/Qwen2.5-VL-7B"]).model, tmp_path)
        == "Qwen/Qwen2.5-VL-7B"
    )
    model.save(tmp_path / "hf")
    own = ConfigStore().override([f"model.local_path={tmp_path / 'hf'}"])
    assert model_folder(own.model, tmp_path / "other") == tmp_path / "hf"
    with pytest.raises(CheckpointError, match="neither a HF folder"):
        model_folder(ConfigStore().override([f"model.local_path={tmp_path}"]).model, tmp_path / "other")


def test_a_vision_model_whose_processor_verl_cannot_build_is_refused(tmp_path: Path) -> None:
    tiny_model().save(tmp_path)
    check_model_folder(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match="cannot build the processor"):
        check_model_folder(tmp_path)

"""Checkpoints: the same next step to the last digit, whole or absent on the disk, readable by HF."""

import contextlib
import json
import random
import resource
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from tests.learner.updates import TEXT, make_learner
from tests.learner.worlds import sample_trajectories, weights_of, with_version
from uirl.config import ModelConfig
from uirl.errors import CheckpointError
from uirl.images import ImageStore
from uirl.inference.models.loading import load_model
from uirl.learner import Learner, collate, export_hf, latest_checkpoint, load_checkpoint, load_policy, save_checkpoint
from uirl.learner.checkpoint import _fingerprint, read_state
from uirl.runtime.folders import check_folder, seal, write_json

LORA = ("model.use_lora=true", "model.lora.r=4", "model.lora.vision=true")
LAST_DIGIT = {
    "ppo on pixels": ["training.adv_estimator=gae"],
    "adapters, dropout and a KL": [*LORA, "model.lora.lora_dropout=0.1", "algorithm.kl_loss_coef=0.1"],
    "a reference after a warm start": [TEXT, "training.use_kl_in_reward=true", "algorithm.kl_target=0.01"],
    "a steered weight of the entropy": [TEXT, "training.entropy_min_p=0.001", "training.target_entropy=9"],
    "moments of 8 bits": [TEXT, "training.optimizer=adamw_8bit", "model.dtype=bfloat16"],
    "bfloat16": [TEXT, "model.dtype=bfloat16", "training.adv_estimator=grpo", "training.group_size=2"],
}


def mutated(value, rng: random.Random):
    """A copy of plain data in which one value, somewhere, is another or gone."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        rest = {k: v for k, v in value.items() if k != key}
        if rng.random() < 0.3:
            return rest
        if rng.random() < 0.2:
            return rest | {key + "x": value[key]}
        return rest | {key: mutated(value[key], rng)}
    return rng.choice([None, True, -1, 1.5, "", "x", "../x", [], {}, [value], {"x": value}])


def reseal(folder: Path) -> None:
    """Makes the manifest of a changed folder true again."""
    (folder / "manifest.json").unlink()
    seal(folder)


def trained(images: ImageStore, *overrides: str) -> tuple[Learner, list]:
    """A learner after a warm start and an update, and samples for the next."""
    learner = make_learner(images, *overrides)
    samples = sample_trajectories(learner.policy, images)
    learner.supervised(samples)
    learner.update(samples)
    return learner, with_version(samples, learner.version - 1)


@pytest.fixture(scope="module")
def shared_images() -> ImageStore:
    return ImageStore()


@pytest.fixture(scope="module")
def saved(tmp_path_factory, shared_images) -> Path:
    """A checkpoint of a text policy with a critic, to be copied and damaged."""
    learner, _ = trained(shared_images, TEXT)
    return save_checkpoint(tmp_path_factory.mktemp("saved") / "step-7", learner, {"episodes": 12})


@pytest.mark.parametrize("name", LAST_DIGIT)
def test_a_resumed_learner_takes_the_same_next_step(name, tmp_path, images):
    learner, samples = trained(images, *LAST_DIGIT[name])
    extra = {"task": 17, "curriculum": {"level-1": [0.25, None]}}
    save_checkpoint(tmp_path / "step-2", learner, extra)
    after_save = (torch.rand(3), np.random.rand(3), random.random())
    torch.manual_seed(1)
    expected = [learner.update(samples) for _ in range(2)]
    weights = weights_of(learner.policy)

    fresh = make_learner(images, *LAST_DIGIT[name])
    torch.manual_seed(99)
    np.random.seed(99)
    random.seed(99)
    assert load_checkpoint(tmp_path / "step-2", fresh) == extra
    assert (fresh.version, fresh.updates) == (2, 1)
    drawn = (torch.rand(3), np.random.rand(3), random.random())
    assert all(np.array_equal(a, b) for a, b in zip(after_save, drawn, strict=True))
    torch.manual_seed(1)
    assert [fresh.update(samples) for _ in range(2)] == expected
    got = weights_of(fresh.policy)
    assert all(torch.equal(got[key], weight) for key, weight in weights.items())


def test_the_phase_of_a_warm_start_goes_on(tmp_path, images):
    overrides = [TEXT, "training.warm_start.warmup_steps=10"]
    learner = make_learner(images, *overrides)
    samples = sample_trajectories(learner.policy, images)
    learner.supervised(samples)
    save_checkpoint(tmp_path / "step-1", learner, {})
    expected = learner.supervised(samples)
    fresh = make_learner(images, *overrides)
    load_checkpoint(tmp_path / "step-1", fresh)
    assert fresh.supervised(samples) == expected


def test_without_its_optimizer_a_checkpoint_is_smaller_and_starts_a_fresh_one(tmp_path, images):
    learner, _ = trained(images, TEXT)
    small = save_checkpoint(tmp_path / "step-1", learner, {}, save_optimizer=False)
    assert not (small / "optimizer.safetensors").exists()
    fresh = make_learner(images, TEXT)
    load_checkpoint(small, fresh)
    assert fresh.optimizer is None
    assert fresh.version == learner.version


def test_others_may_read_a_checkpoint_and_only_its_owner_writes(saved):
    assert stat.S_IMODE(saved.stat().st_mode) == 0o755


def test_nothing_in_a_checkpoint_is_a_pickle(saved):
    names = {p.suffix for p in saved.rglob("*") if p.is_file()}
    assert names <= {".safetensors", ".json", ".yaml", ".jinja"}
    assert json.loads((saved / "state.json").read_text())["extra"] == {"episodes": 12}


class TestDamage:
    @staticmethod
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    @staticmethod
    def truncate(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1])

    @pytest.mark.parametrize(
        ("harm", "words", "name"),
        [
            ("flip", "other contents", "policy/model.safetensors"),
            ("flip", "other contents", "value_head.safetensors"),
            ("truncate", "bytes, expected", "optimizer.safetensors"),
            ("truncate", "bytes, expected", "config.yaml"),
            ("remove", "is missing", "state.json"),
        ],
    )
    def test_a_damaged_file_is_named_with_an_older_checkpoint_to_use(self, harm, words, name, saved, tmp_path):
        for step in (5, 6, 7):
            shutil.copytree(saved, tmp_path / f"step-{step}")
        path = tmp_path / "step-7" / name
        {"flip": self.flip, "truncate": self.truncate, "remove": Path.unlink}[harm](path)
        with pytest.raises(CheckpointError, match=rf"step-7 is damaged: {name} .*{words}.*older one: step-6, step-5"):
            load_policy(tmp_path / "step-7")

    def test_a_damaged_checkpoint_changes_nothing(self, saved, tmp_path, shared_images):
        shutil.copytree(saved, tmp_path / "step-7")
        self.flip(tmp_path / "step-7" / "optimizer.safetensors")
        learner = make_learner(shared_images, TEXT)
        before, state = weights_of(learner.policy), torch.get_rng_state()
        with pytest.raises(CheckpointError, match=r"optimizer.safetensors has other contents.*no other one beside"):
            load_checkpoint(tmp_path / "step-7", learner)
        assert all(torch.equal(w, before[name]) for name, w in weights_of(learner.policy).items())
        assert torch.equal(torch.get_rng_state(), state)
        assert learner.version == 0

    def test_a_folder_that_is_not_there(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
            load_policy(tmp_path / "step-3")

    def test_a_file_that_came_later_is_refused(self, saved, tmp_path):
        shutil.copytree(saved, tmp_path / "step-7")
        (tmp_path / "step-7" / "policy" / "modeling.py").write_text("raise SystemExit")
        with pytest.raises(CheckpointError, match=r"policy/modeling\.py is not in the manifest"):
            load_policy(tmp_path / "step-7")

    @pytest.mark.parametrize("name", ["manifest.json", "state.json"])
    def test_a_mutated_file_is_a_checkpoint_error_that_names_it(self, name, saved, tmp_path, shared_images):
        """Mutations of parsed JSON at every level; state.json with a manifest that vouches for it."""
        folder, rng = tmp_path / "step-7", random.Random(0)
        shutil.copytree(saved, folder)
        whole = json.loads((folder / name).read_text())
        if name == "state.json":
            whole["random"] = {}
        learner, refused = make_learner(shared_images, TEXT), 0
        for _ in range(300):
            write_json(folder / name, mutated(whole, rng))
            if name == "state.json":
                reseal(folder)
            with contextlib.suppress(CheckpointError):
                check_folder(folder)
                if name == "state.json":
                    read_state(folder)
                refused -= 1
            refused += 1
        assert refused > 250 if name == "manifest.json" else refused > 20
        write_json(folder / "state.json", json.loads((saved / "state.json").read_text()) | {"random": {}})
        reseal(folder)
        with pytest.raises(CheckpointError, match=r"step-7 is damaged: state\.json has no valid 'random'"):
            load_checkpoint(folder, learner)

    @pytest.mark.parametrize("entry", ["../../secret", "/etc/passwd", ""])
    def test_a_manifest_names_no_file_outside(self, entry, saved, tmp_path):
        shutil.copytree(saved, tmp_path / "step-7")
        path = tmp_path / "step-7" / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["files"][entry] = {"bytes": 1, "sha256": "0"}
        path.write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match=r"manifest\.json has a damaged entry"):
            load_policy(tmp_path / "step-7")

    def test_a_later_format_is_not_guessed_at(self, saved, tmp_path):
        shutil.copytree(saved, tmp_path / "step-7")
        manifest = json.loads((tmp_path / "step-7/manifest.json").read_text())
        (tmp_path / "step-7/manifest.json").write_text(json.dumps(manifest | {"format": 2}))
        with pytest.raises(CheckpointError, match="has format 2, expected 1"):
            load_policy(tmp_path / "step-7")

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["training.adv_estimator=reinforce_plus_plus"], "made with a value head"),
            (["model.use_lora=true"], "made without adapters"),
            (["model.tiny.intermediate_size=64"], r"another model: \S*mlp.*proj.weight is \(\d+, \d+\) there"),
        ],
    )
    def test_a_checkpoint_of_another_policy(self, overrides, message, saved, shared_images):
        learner = make_learner(shared_images, TEXT, *overrides)
        before = weights_of(learner.policy)
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(saved, learner)
        assert all(torch.equal(w, before[name]) for name, w in weights_of(learner.policy).items())

    def test_adapters_of_another_base(self, tmp_path, images):
        learner = make_learner(images, TEXT, "model.use_lora=true")
        save_checkpoint(tmp_path / "step-1", learner, {})
        other = make_learner(images, TEXT, "model.use_lora=true", "training.seed=1")
        with pytest.raises(CheckpointError, match="belong to another base model"):
            load_checkpoint(tmp_path / "step-1", other)
        layer = torch.nn.Linear(40, 1, bias=False)
        torch.nn.init.constant_(layer.weight, 0.5)
        earlier = "b50d633f10afd9486cf7075f2419af2b"  # checkpoints of earlier versions name their base so
        assert _fingerprint(SimpleNamespace(model=layer)) == earlier


class TestDisk:
    def test_only_the_newest_are_kept_and_what_is_no_checkpoint(self, tmp_path, images):
        (tmp_path / "notes-1").mkdir()
        learner = make_learner(images, TEXT)
        for step in (1, 2, 9, 10):
            save_checkpoint(tmp_path / f"step-{step}", learner, {}, keep_last_n=2)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["notes-1", "step-10", "step-9"]
        assert latest_checkpoint(tmp_path) == tmp_path / "step-10"
        save_checkpoint(tmp_path / "step-11", learner, {}, keep_last_n=1, kept=(tmp_path / "step-9",))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["notes-1", "step-11", "step-9"]

    def test_no_checkpoint_yet(self, tmp_path):
        assert latest_checkpoint(tmp_path) is None
        assert latest_checkpoint(tmp_path / "absent") is None

    def test_a_name_without_number_has_no_place_in_the_order(self, tmp_path, images):
        with pytest.raises(CheckpointError, match="must end in a number"):
            save_checkpoint(tmp_path / "best", make_learner(images, TEXT), {})

    def test_a_full_disk_leaves_nothing_half_written(self, tmp_path, images):
        learner = make_learner(images, TEXT)
        save_checkpoint(tmp_path / "step-1", learner, {"good": True})
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
        try:
            with pytest.raises(CheckpointError, match=r"cannot write .*step-2.*(File too large|size limit)"):
                save_checkpoint(tmp_path / "step-2", learner, {})
            with pytest.raises(CheckpointError, match="cannot write"):
                save_checkpoint(tmp_path / "step-1", learner, {})
            with pytest.raises(CheckpointError, match="cannot write"):
                export_hf(tmp_path / "export", learner)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [p.name for p in tmp_path.iterdir()] == ["step-1"]
        assert load_checkpoint(tmp_path / "step-1", learner) == {"good": True}

    def test_what_a_kill_leaves_behind_is_not_seen_and_swept(self, tmp_path, images):
        learner = make_learner(images, TEXT)
        save_checkpoint(tmp_path / "step-1", learner, {})
        # killed while writing it again, and between the two renames that replace it
        shutil.copytree(tmp_path / "step-1", tmp_path / ".writing-step-1-abc")
        (tmp_path / "step-1").rename(tmp_path / ".replaced-step-1")
        assert latest_checkpoint(tmp_path) is None
        with pytest.raises(TypeError):
            save_checkpoint(tmp_path / "step-1", learner, {"not json": object()})
        assert [p.name for p in tmp_path.iterdir()] == ["step-1"]
        assert load_checkpoint(tmp_path / "step-1", learner) == {}

    def test_a_checkpoint_of_the_same_name_is_replaced(self, tmp_path, images):
        learner = make_learner(images, TEXT)
        for number in (1, 2):
            save_checkpoint(tmp_path / "step-1", learner, {"number": number})
        assert load_checkpoint(tmp_path / "step-1", learner) == {"number": 2}
        assert [p.name for p in tmp_path.iterdir()] == ["step-1"]


@pytest.mark.parametrize("overrides", [[], list(LORA)], ids=["whole", "adapters"])
class TestReaders:
    def test_load_policy_gives_the_policy_back(self, overrides, tmp_path, images):
        learner, samples = trained(images, *overrides)
        save_checkpoint(tmp_path / "step-1", learner, {})
        there = learner.config.model.model_copy(update={"device": "cuda"})
        policy = load_policy(tmp_path / "step-1", model=there, device="cpu")
        assert policy.loaded.device.type == "cpu"
        batch = collate(policy.loaded, samples, images)
        with torch.no_grad():
            for name in ("log_probs", "values"):
                got = getattr(policy.log_probs_and_values(batch, values=True), name)
                assert torch.equal(got, getattr(learner.policy.log_probs_and_values(batch, values=True), name))
        assert policy.loaded.tokenizer.chat_template == learner.policy.loaded.tokenizer.chat_template
        assert policy.loaded.banned_ids == learner.policy.loaded.banned_ids

    def test_the_export_is_read_by_hf_and_by_load_model(self, overrides, tmp_path, images):
        learner, samples = trained(images, *overrides)
        folder = export_hf(tmp_path / "export", learner)
        batch = collate(learner.policy.loaded, samples, images)
        inputs = {"input_ids": batch.input_ids, "position_ids": batch.position_ids}
        inputs |= learner.policy.loaded.pixel_inputs(batch.images)
        with torch.no_grad():
            expected = learner.policy.model(**inputs).logits
            plain = AutoModelForImageTextToText.from_pretrained(folder)
            assert (plain(**inputs).logits - expected).abs().max() < 1e-4
            loaded = load_model(ModelConfig(local_path=str(folder), device="cpu"))
            assert (loaded.model(**inputs).logits - expected).abs().max() < 1e-4
        assert AutoTokenizer.from_pretrained(folder).chat_template == loaded.tokenizer.chat_template
        assert not [name for name, _ in plain.named_parameters() if "lora" in name or "base_layer" in name]

"""`uirl verl` as a person types it, on real verl and a Ray of its own."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integrations.verl.pages import SHIPPED
from tests.integrations.verl.runs import CPU, config
from uirl.cli.main import main
from uirl.images import ImageStore
from uirl.learner import Learner, Policy, save_checkpoint
from uirl.metrics import read_metrics
from uirl.storage import TrajectoryStore

pytestmark = pytest.mark.verl

KEY = "sk-4711-of-nobody"
URL = "http://127.0.0.1:9/v1"
ASKING = {"url": URL, "key_hash": hashlib.sha256(KEY.encode()).hexdigest()}


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """Ray's sockets lie in its folder, and their paths must be short."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def written(folder: Path, **more: Any) -> Path:
    """A YAML in verl's terms for this machine: two GRPO updates of a tiny text model."""
    store = config(folder, "training.num_iters_per_epoch=2", "environment.name=tests.integrations.verl.worlds:Asking")
    own = store.to_dict() | {"model": {"model_name": "uirl/tiny-lm", "device": "cpu"}}
    own["environment"]["options"] = dict(ASKING)
    tree: dict[str, Any] = {"uirl": own, "curriculum": {"enabled": True, "min_attempts_per_task": 4}}
    values = CPU | {"actor_rollout_ref.rollout.n": 4, "algorithm.clip_eps_low": 0.2, "algorithm.clip_eps_high": 0.3}
    for key, value in (values | more).items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def starting_policy(folder: Path) -> Path:
    """A checkpoint of the local trainer."""
    store = config(folder, "model.model_name=uirl/tiny-lm")
    learner = Learner(Policy.from_config(store), store, ImageStore())
    return save_checkpoint(folder / "sft" / "step_000001", learner, {})


def everything_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path, path.read_bytes()


def test_a_run_from_a_file_with_a_judge_whose_key_is_nowhere(tmp_path: Path, short_folder: Path) -> None:
    ray = {"num_cpus": 8, "num_gpus": 1, "include_dashboard": False, "object_store_memory": 500_000_000}
    own = {f"ray_kwargs.ray_init.{key}": value for key, value in (ray | {"_temp_dir": str(short_folder)}).items()}
    command = [sys.executable, "-m", "uirl.cli.main", "verl", "--config", str(written(tmp_path, **own))]
    command += ["--llm_base_url", URL, "--api_key", KEY, "--sft_model_path", str(starting_policy(tmp_path))]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_ADDRESS")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=clean)
    assert done.returncode == 0, done.stderr[-4000:]
    run = tmp_path / "run"
    assert f"run directory   {run}" in done.stdout
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert [row["success"] for row in rows] == [1.0, 1.0], "the workers were told address and key"
    assert (run / "model" / "exported_from").read_text().startswith(str(tmp_path / "sft"))
    assert yaml.safe_load((run / "verl.yaml").read_text())["actor_rollout_ref"]["actor"]["clip_ratio_high"] == 0.3
    with TrajectoryStore(run / "trajectories.sqlite", read_only=True) as store:
        assert store.count() == 32
    assert KEY not in done.stdout + done.stderr
    logs = 0
    for folder in (run, short_folder):
        for path, data in everything_below(folder):
            logs += path.suffix in (".log", ".out", ".err")
            assert KEY.encode() not in data, f"{path} holds the key"
    assert logs > 10, "Ray's logs were read"


def test_the_whole_config_is_shown_without_starting_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UIRL_LLM_API_KEY", KEY)
    path = written(tmp_path)
    said_in = ["verl", "--config", str(path), "--dry_run", "--llm_base_url", URL, "trainer.nnodes=2"]
    monkeypatch.setenv("UIRL_LLM_BASE_URL", "")
    assert main(said_in) == 0
    said = capsys.readouterr().out
    shown = yaml.safe_load(said)
    assert shown["trainer"]["nnodes"] == 2
    assert shown["data"]["custom_cls"]["name"] == "CustomEnvironmentDataset"
    assert shown["actor_rollout_ref"]["model"]["path"] == str(tmp_path / "run" / "model")
    assert KEY not in said
    assert not (tmp_path / "run").exists()


def test_a_run_is_continued_only_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, **{"trainer.resume_mode": "auto"})
    assert main(["verl", "--config", str(path), "--dry_run", "uirl.logging.run_name=null"]) == 2
    assert "add uirl.logging.run_name" in capsys.readouterr().err


PARTS = {
    "trainer.v1.trainer_mode": "sync",
    "trainer.checkpoint_callback_class": "mine.Callback",
    "data.custom_cls.path": "/somewhere/mine.py",
    "data.custom_cls.name": "Mine",
    "data.train_files": "/somewhere/train.parquet",
    "actor_rollout_ref.rollout.agent.default_agent_loop": "mobile_world",
}


def test_parts_of_verls_that_a_person_names_are_not_replaced_by_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(SHIPPED["configs/verl_config.yaml"])
    words = [f"{key}={value}" for key, value in PARTS.items()]
    runs = f"uirl.logging.runs_dir={tmp_path}"
    assert main(["verl", "--config", str(path), "--dry_run", *words, runs]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    for key, value in PARTS.items():
        found = shown
        for part in key.split("."):
            found = found[part]
        assert found == value, key
    assert main(["verl", "--config", str(path), "--dry_run", "data.shuffle=true", runs]) == 2
    assert "makes its rows as the curriculum moves" in capsys.readouterr().err

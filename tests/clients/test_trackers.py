"""Trackers of others get every row, a resumed run goes on in the same place, and their own readers find it."""

from __future__ import annotations

from pathlib import Path

import pytest

from uirl.metrics import TRACKERS, MetricsLogger

pytestmark = pytest.mark.clients


def send(folder: Path, name: str) -> None:
    """Two updates after a step of the warm start, the second of them again by a run that was resumed."""
    sender = TRACKERS[name]
    for resumed in (False, True):
        tracker = sender("project", "run-1", {"training": {"seed": 3}}, resume=resumed)
        with MetricsLogger(folder / "m.jsonl", resume_after=1 if resumed else None, trackers=[tracker]) as logger:
            if not resumed:
                logger.log(7, {"loss": 9.0}, "warm_start")
                logger.log(1, {"loss": 1.0, "eval/success": None})
            logger.log(2, {"loss": 0.5, "solved@4": 0.25})


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its database needs packages of the whole mlflow
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    send(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("project")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("run-1", "FINISHED")
    assert sorted(run.data.metrics) == ["loss", "solved_4", "warm_start/loss"]
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(1, 1.0), (2, 0.5), (2, 0.5)]
    assert mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/config.json") == {"training": {"seed": 3}}


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    from trackio.sqlite_storage import SQLiteStorage

    send(tmp_path, "trackio")
    assert SQLiteStorage.get_runs("project") == ["run-1"]
    rows = [(row["step"], row.get("loss"), row.get("solved@4")) for row in SQLiteStorage.get_logs("project", "run-1")]
    assert rows == [(7, None, None), (1, 1.0, None), (2, 0.5, 0.25), (2, 0.5, 0.25)]


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    send(tmp_path, "wandb")
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-run-1.wandb"))
    assert len(files) == 2
    assert [b"warm_start/loss" in file.read_bytes() for file in files] == [True, False]
    assert all(b"solved@4" in file.read_bytes() for file in files)

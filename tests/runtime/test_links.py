"""Runs that somebody else handed over: no file of theirs leads to one of ours, and none is waited for without end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.viewer.conftest import ADDRESS
from tests.viewer.runs import CONFIG, make_run, trajectory
from uirl.cli.main import main
from uirl.errors import StorageError, UirlError
from uirl.storage import RunDirectory
from uirl.storage.labels import FILE, Label, LabelStore
from uirl.training.evaluation.measure import locate
from uirl.viewer.access import Access
from uirl.viewer.app import create_app
from uirl.viewer.runs import Runs

SECRET = '{"step": 1, "secret-word": 1, "url": "http://secret-word/"}\n'
ROUTES = ("", "/odd", "/odd/metrics", "/odd/metrics.csv", "/odd/trajectories/a", "/odd/labels.csv", "/odd/trajectories")


def link(path: Path, secret: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(secret)


def link_that_climbs(path: Path, secret: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(secret, path.parent))


def link_by_a_folder(path: Path, secret: Path) -> None:
    """The file stands in a folder of its name's run that is itself a link."""
    path.unlink(missing_ok=True)
    way = path.parent / "way"
    way.symlink_to(secret.parent)
    path.symlink_to(f"way/{secret.name}")


def pipe(path: Path, secret: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def plug(path: Path, secret: Path) -> None:
    path.unlink(missing_ok=True)
    here = os.getcwd()
    os.chdir(path.parent)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


FILES = [
    *("config.yaml", "metrics.jsonl", "summary.json", "serve.json", "trajectories.sqlite", FILE, ".lock"),
    *("judgements/rules.jsonl", "checkpoints/step_000001/manifest.json", "learning_curve.png"),
]


def viewer_of(path: Path) -> TestClient:
    return TestClient(create_app(Runs([str(path)]), Access("127.0.0.1", 8123)), base_url=ADDRESS)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    made = tmp_path / "home" / "secret"
    made.write_text(SECRET)
    return made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = make_run(tmp_path / "runs" / "odd", [trajectory("a")])
    for folder in ("judgements", "checkpoints/step_000001"):
        (made / folder).mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        *product(FILES, [link]),
        *product(("config.yaml", "trajectories.sqlite"), [link_that_climbs, link_by_a_folder, pipe, plug]),
    ],
)
def test_no_file_of_a_run_leads_out_of_it(
    run: Path, secret: Path, name: str, spoil: Callable[[Path, Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run / name, secret)
    with viewer_of(run.parent) as client:
        for route in ROUTES:
            answer = client.get(f"/api/runs{route}")
            assert answer.status_code < 500, (route, answer.text)
            assert "secret-word" not in answer.text, route
        client.put("/api/runs/odd/trajectories/a/label", json={"passed": True})
    uses: list[Callable[[], object]] = [
        lambda: RunDirectory.open(run),
        lambda: RunDirectory.create(run, CONFIG + "\n", resume=True),
        lambda: locate(run),
    ]
    for use in uses:
        with pytest.raises(UirlError):
            use()
    commands = [["judge", str(run)], ["eval", str(run)], ["export", str(run), "--to", "sft"]]
    if name == "config.yaml":
        commands.append(["check", str(run)])
    if spoil is link and name in ("config.yaml", "trajectories.sqlite"):
        commands.append(["train", str(run), "--resume"])  # makes the model first, then opens the run as above
    for command in commands:
        assert main(command) == 2, command
    told = capsys.readouterr()
    assert "secret-word" not in told.out + told.err
    assert secret.read_text() == SECRET
    assert [path.name for path in secret.parent.iterdir()] == ["secret"]


def test_a_link_within_the_run_and_one_to_the_run_are_followed(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints" / "best").symlink_to("step_000001")
    (tmp_path / "latest").symlink_to(run)
    assert RunDirectory.open(tmp_path / "latest").config_path.read_text() == CONFIG
    with RunDirectory.create(tmp_path / "latest", CONFIG, resume=True) as opened:
        assert opened.name == "odd"
    with TestClient(
        create_app(Runs([str(tmp_path / "latest")]), Access("127.0.0.1", 8123)), base_url=ADDRESS
    ) as client:
        (line,) = client.get("/api/runs").json()["runs"]
        assert (line["problem"], line["trajectories"]) == (None, 1)


def test_a_file_without_lines_is_not_read_whole(run: Path) -> None:
    with open(run / "metrics.jsonl", "ab") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with viewer_of(run.parent) as client:
        for route in ROUTES:
            assert client.get(f"/api/runs{route}").status_code < 500, route


def test_labels_are_not_written_through_a_link(run: Path, secret: Path) -> None:
    (run / FILE).symlink_to(secret.parent / "new.sqlite")
    with pytest.raises(StorageError, match="is a link"):
        LabelStore(run / FILE).set("a", Label(True))
    assert not (secret.parent / "new.sqlite").exists()

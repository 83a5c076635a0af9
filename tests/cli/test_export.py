"""`uirl export`: a run's policy and episodes for other programs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.conftest import QUICK
from uirl.cli.main import main
from uirl.cli.share import data_card, model_card
from uirl.config import ConfigStore, ModelConfig
from uirl.config.stored import remember
from uirl.images import Screenshot, screenshot
from uirl.storage import RunDirectory, TrajectoryStore
from uirl.types import Action, Observation, Task, Trajectory, Turn


@pytest.fixture
def runs(whole: Path, lora: Path) -> dict[str, Path]:
    return {"whole": whole, "lora": lora}


def exported(capsys: pytest.CaptureFixture[str], *words: str) -> Path:
    capsys.readouterr()
    assert main(["export", *words]) == 0
    return Path(capsys.readouterr().out.strip())


@pytest.mark.parametrize("run", ["whole", "lora"])
def test_weights_open_with_hf_and_measure_as_the_run_does(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], run: str
) -> None:
    folder = exported(capsys, str(runs[run]), "--to", "hf")
    assert folder == runs[run] / "exports" / "step_000002-hf"
    AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    reports = []
    for path in (runs[run], folder):
        assert main(["eval", str(path), *QUICK[2:4], "--episodes", "8", "--json", str(tmp_path / "report.json")]) == 0
        reports.append(json.loads((tmp_path / "report.json").read_text()))
    assert reports[0]["reward"] == reports[1]["reward"]


def test_an_adapter_opens_with_hf(whole: Path, lora: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = lora / "checkpoints" / "step_000002"
    folder = exported(capsys, str(checkpoint), "--to", "peft")
    assert folder == lora / "exports" / "step_000002-peft"
    AutoModelForCausalLM.from_pretrained(folder)
    assert main(["export", str(whole), "--to", "peft"]) == 2
    assert "has no adapters" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["hf", "peft"])
def test_what_no_export_has_written_is_not_replaced(
    lora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    run = lora
    before = sorted(path.name for path in run.iterdir())
    precious = tmp_path / "precious"
    (precious / "inside").mkdir(parents=True)
    (precious / "inside" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("of words")
    (tmp_path / "link").symlink_to(precious)
    for place in (precious, run, run.parent, tmp_path / "file", tmp_path / "link"):
        assert main(["export", str(run), "--to", kind, "--out", str(place)]) == 2
        assert "would be" in capsys.readouterr().err
    assert (precious / "inside" / "thesis.txt").read_text() == "years"
    assert (tmp_path / "file").read_text() == "of words"
    assert sorted(path.name for path in run.iterdir()) == before
    (tmp_path / "empty").mkdir()
    for _ in range(2):  # an empty folder, and the export in it
        folder = exported(capsys, str(run), "--to", kind, "--out", str(tmp_path / "empty"))
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o644}
    (folder / "notes.txt").write_text("mine")
    assert main(["export", str(run), "--to", kind, "--out", str(folder)]) == 2
    assert "notes.txt" in capsys.readouterr().err


def test_episodes_are_those_of_training_that_were_solved(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(capsys, str(whole), "--to", "sft", "--out", str(tmp_path / "out" / "sft.jsonl"))
    written = {json.loads(line)["id"] for line in file.read_text().splitlines()}
    with TrajectoryStore(whole / "trajectories.sqlite", read_only=True) as store:
        episodes = store.list()
    assert {e.split for e in episodes} > {"train"}
    assert written == {e.id for e in episodes if e.split == "train" and e.success and e.failure is None}


def played(
    folder: Path, environment: str, options: dict[str, object], pictures: Sequence[Screenshot] = (), **inference: object
) -> Path:
    """A run directory with one solved episode of two replies."""
    config = ConfigStore.from_dict({"environment": {"name": environment, "options": options}, "inference": inference})
    turns = [
        Turn(Observation(text, tuple(pictures)), action=Action(reply)) for text, reply in (("one", "1"), ("two", "2"))
    ]
    RunDirectory.create(folder, config.to_yaml()).close()
    remember(config.to_dict())
    with TrajectoryStore(folder / "trajectories.sqlite") as store:
        store.add(Trajectory("t", Task("a"), turns, stop_reason="terminated", metrics={"success": 1.0}), step=1)
    return folder


@pytest.mark.parametrize(
    ("environment", "options", "inference", "words", "system", "tools"),
    [
        ("guess_number", {"describe": True}, {}, [], "Find a number from 1 to 7", []),
        ("guess_number", {}, {}, [], None, []),
        ("guess_number", {"describe": True}, {"system_prompt": "as I say"}, [], "as I say", []),
        ("guess_number", {"describe": True}, {}, ["--system-prompt", "other"], "other", []),
        ("guess_number", {"describe": True}, {}, ["--system-prompt", ""], None, []),
        ("calculator", {"describe": "template"}, {}, [], "Work out the expression", ["calculator"]),
        ("no.such:Thing", {}, {"system_prompt": "as I say"}, [], "as I say", []),
    ],
)
def test_episodes_begin_with_what_the_policy_was_told(
    environment: str,
    options: dict[str, object],
    inference: dict[str, object],
    words: list[str],
    system: str | None,
    tools: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = played(tmp_path / "run", environment, options, **inference)
    file = exported(capsys, str(run), "--to", "sft", *words)
    (line,) = map(json.loads, file.read_text().splitlines())
    first, *rest = line["messages"]
    if system is None:
        assert first["role"] == "user"
    else:
        assert first["role"] == "system"
        assert first["content"].startswith(system)
        assert [message["role"] for message in rest] == ["user", "assistant"] * 2
    assert [tool["function"]["name"] for tool in json.loads(line.get("tools", "[]"))] == tools


def test_an_example_per_reply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = played(tmp_path / "run", "guess_number", {})
    file = exported(capsys, str(run), "--to", "sft", "--each-reply", "--out", str(tmp_path / "x.jsonl"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["completion"] for line in lines] == [[{"role": "assistant", "content": reply}] for reply in "12"]
    assert [len(line["prompt"]) for line in lines] == [1, 3]


def test_a_run_without_a_solved_episode_leaves_the_file_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    RunDirectory.create(run, ConfigStore.from_dict({"environment": {"name": "guess_number"}}).to_yaml()).close()
    with TrajectoryStore(run / "trajectories.sqlite") as store:
        lost = Trajectory("t", Task("a"), [Turn(Observation("one"), action=Action("1"))], stop_reason="terminated")
        store.add(lost, step=1)
    written = tmp_path / "sft.jsonl"
    written.write_text("of an earlier run")
    assert main(["export", str(run), "--to", "sft", "--out", str(written)]) == 2
    assert "nothing to imitate" in capsys.readouterr().err
    assert written.read_text() == "of an earlier run"


def test_an_environment_that_cannot_be_asked_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = played(tmp_path / "run", "no.such:Thing", {})
    assert main(["export", str(run), "--to", "sft"]) == 2
    assert "say it: --system-prompt TEXT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere", "--to", "hf"], "does not exist"),
        ([".", "--to", "hf"], "neither a run directory"),
        ([".", "--to", "sft"], "holds no trajectories.sqlite"),
    ],
)
def test_what_is_no_run_is_told(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", *words]) == 2
    assert told in capsys.readouterr().err


class HubStandIn(ThreadingHTTPServer):
    """The part of the hub's API that a push needs: repositories, commits, and large files by LFS."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.private: dict[str, bool] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.large: dict[str, bytes] = {}


class HubHandler(BaseHTTPRequestHandler):
    server: HubStandIn

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        kind, _, name = self.path.removeprefix("/api/").partition("/")
        private = self.server.private.get(f"{kind}/{name}")
        if private is None:
            return self.answer({"error": "Not found"}, 404)
        self.answer({"id": name, "private": private, "siblings": [], "sha": "0" * 40, "tags": [], "downloads": 0})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.large[hashlib.sha256(body).hexdigest()] = body
        self.answer({})

    def do_POST(self) -> None:
        hub, body = self.server, self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Authorization") != "Bearer hf_right":
            self.answer({"error": "Invalid credentials"}, 401)
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            kind, name = f"{asked.get('type', 'model')}s", f"{asked.get('organization', 'me')}/{asked['name']}"
            hub.private.setdefault(f"{kind}/{name}", asked.get("private", asked.get("visibility") == "private"))
            self.answer({"url": f"{hub.url}/{'datasets/' * (kind == 'datasets')}{name}"})
        elif self.path == "/api/validate-yaml":
            assert yaml.safe_load(json.loads(body)["content"].split("---")[1])
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = ("lfs" if path.endswith("safetensors") else "regular" for path in files)
            told = [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in zip(files, modes, strict=True)]
            self.answer({"files": told})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**wanted, "actions": {"upload": {"href": f"{hub.url}/lfs/{wanted['oid']}"}}}
                for wanted in json.loads(body)["objects"]
            ]
            self.answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in self.path:
            name = self.path.removeprefix("/api/").partition("/commit/")[0]
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    hub.files.setdefault(name, {})[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files.setdefault(name, {})[value["path"]] = hub.large[value["oid"]]
            self.answer(
                {"commitUrl": f"{hub.url}/{name.removeprefix('models/')}/commit/{'1' * 40}", "commitOid": "1" * 40}
            )
        else:
            self.answer({"error": f"unknown {self.path}"}, 404)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    with HubStandIn() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)  # its server is none of the API
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        yield server
        server.shutdown()


def test_a_policy_is_pushed_whole_with_its_card_and_private(
    whole: Path, tmp_path: Path, hub: HubStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hf"
    assert main(["export", str(whole), "--to", "hf", "--out", str(out), "--push", "me/screen"]) == 0
    assert f"{hub.url}/me/screen" in capsys.readouterr().out
    assert hub.private == {"models/me/screen": True}
    assert hub.files["models/me/screen"] == {
        str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()
    }
    card, summary = ModelCard.load(out / "README.md"), json.loads((whole / "summary.json").read_text())
    assert card.data.to_dict()["library_name"] == "transformers"
    assert card.data.eval_results is None, "the game has too few states for anything to be held out"
    assert "| held out from training | not known |" in card.text
    assert f"| success | {100 * summary['success_after']:.1f} %" in card.text
    model = ModelConfig(local_path="/home/me/secret/base")
    summary["held_out"]["held_out"] = True
    card = ModelCard(model_card(model, "game", summary, "step_000002", "hf"))
    assert [result.metric_value for result in card.data.eval_results] == [summary["success_after"]]
    assert "| held out from training | yes |" in card.text
    assert "from the folder `base`, which is on no hub" in card.text
    assert "secret" not in card.text + data_card(model, "game", tmp_path / "sft.jsonl", 2)
    # the figures are those of the last checkpoint, and of no other
    early = exported(capsys, str(whole / "checkpoints" / "step_000000"), "--to", "hf", "--out", str(tmp_path / "early"))
    card = ModelCard.load(early / "README.md")
    assert card.data.eval_results is None
    assert "was not measured" in card.text


def test_episodes_are_pushed_with_their_pictures_and_card(
    hub: HubStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = played(tmp_path / "run", "guess_number", {}, pictures=[screenshot(np.zeros((8, 8, 3), np.uint8))])
    assert main(["export", str(run), "--to", "sft", "--push", "me/episodes", "--public"]) == 0
    assert hub.private == {"datasets/me/episodes": False}
    there = hub.files["datasets/me/episodes"]
    (line,) = map(json.loads, there["sft.jsonl"].splitlines())
    assert sorted(there) == sorted({"README.md", "sft.jsonl", *line["images"]})
    assert "\n1 example of what" in there["README.md"].decode()
    assert "  data_files: sft.jsonl\n" in there["README.md"].decode()


@pytest.mark.parametrize(
    ("name", "token", "words", "told"),
    [
        ("me/there", "hf_right", [], "is public: everybody could read"),
        ("me/new", "hf_wrong", [], "hf auth login"),
        ("me/a/b", "hf_right", [], "is the name OWNER/NAME"),
        (None, "hf_right", ["--public"], "add --push OWNER/NAME"),
    ],
)
def test_a_push_that_cannot_be_is_told_before_anything_is_written(
    whole: Path,
    hub: HubStandIn,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str | None,
    token: str,
    words: list[str],
    told: str,
) -> None:
    hub.private["models/me/there"] = False
    monkeypatch.setenv("HF_TOKEN", token)
    pushed = ["--push", name] if name else []
    assert main(["export", str(whole), "--to", "hf", "--out", str(tmp_path / "out"), *pushed, *words]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert hub.files == {}

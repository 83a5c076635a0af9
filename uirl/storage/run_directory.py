"""The folder of one run: its files, its lock, and writes that are whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from uirl.config import InferenceConfig, ModelConfig
from uirl.errors import StorageError
from uirl.runtime.files import require_plain, storage_errors, write_atomically


class RunTaken(StorageError):
    """Another run is in the folder that one was to have."""


class RunDirectory:
    """`<runs_dir>/<run_name>/`: config.yaml, metrics.jsonl, trajectories.sqlite, checkpoints/, summary.json, plots.

    `create` is for the one process that writes and holds a lock until `close`; `open` is for readers.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_path = self.path / "config.yaml"
        self.metrics_path = self.path / "metrics.jsonl"
        self.trajectories_path = self.path / "trajectories.sqlite"
        self.summary_path = self.path / "summary.json"
        self.checkpoints = self.path / "checkpoints"
        self.tensorboard = self.path / "tensorboard"
        self._lock: int | None = None

    @classmethod
    def create(cls, path: str | os.PathLike[str], config: str, *, resume: bool = False) -> Self:
        """Return the directory at `path`, locked for this process, with `config` (YAML) as its config.yaml.

        Args:
            path: Where; folders above it are made.
            config: The resolved config of the run.
            resume: Continue the run that is there; where there is none, begin it. The config it had until now stays
                as `config.<n>.yaml` where it differs. False: a folder that is not empty is refused.

        Raises:
            RunTaken: Another run or other files are there, or another process writes there.
            StorageError: It cannot be written, or holds links out of it, pipes or devices.
        """
        run = cls(path)
        with storage_errors(f"cannot create the run directory {run.path}"):
            run.path.mkdir(parents=True, exist_ok=True)
        require_plain(run.path)
        run._take_lock()
        try:
            run._refuse_foreign_files(resume)
            run._write_config(config)
            with storage_errors(f"cannot create {run.checkpoints}"):
                run.checkpoints.mkdir(exist_ok=True)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Return the existing run at `path`, for reading. Raises `StorageError` where there is none."""
        run = cls(path)
        if not run.config_path.is_file():
            raise StorageError(f"{run.path} is no run directory: it has no config.yaml; expected runs/<name>")
        require_plain(run.path)
        return run

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def plot_path(self, name: str) -> Path:
        """Return where the picture `name` belongs, for example 'learning_curve'."""
        return self.path / f"{name}.png"

    def write_text(self, name: str, text: str) -> Path:
        """Replace the file `name` of this run by `text` in one step; return its path."""
        write_atomically(self.path / name, text)
        return self.path / name

    def write_json(self, name: str, data: Any) -> Path:
        """Replace the file `name` of this run by `data` in one step; return its path. Raises `StorageError` for data
        that JSON does not have; NaN and infinities too, since other programs cannot read them."""
        try:
            text = json.dumps(data, indent=2, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise StorageError(f"{name} cannot be written as JSON: {error}; use null for a missing number") from error
        return self.write_text(name, text + "\n")

    def read_json(self, name: str) -> Any:
        """Return what `write_json` wrote. Raises `StorageError` where the file is missing or damaged."""
        path = self.path / name
        with storage_errors(f"cannot read {path}"):
            text = path.read_text(encoding="utf-8")
        try:
            return json.loads(text)
        except ValueError as error:
            raise StorageError(f"{path} is not JSON: {error}") from error

    def close(self) -> None:
        """Let another process write here. Calling it twice is fine."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_lock(self) -> None:
        """Lock the directory for this process; the kernel frees the lock of one that dies in any way."""
        with storage_errors(f"cannot write to {self.path}"):
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            self.close()
            raise RunTaken(
                f"{self.path} is being written by process {holder or 'of unknown id'}; stop that run (or close it, if "
                "it is this process: trainer.cleanup()), or choose another run name"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _refuse_foreign_files(self, resume: bool) -> None:
        others = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
        is_run = self.config_path.is_file()
        if not others or (is_run and resume):
            return
        if is_run:
            raise RunTaken(
                f"{self.path} already holds a run; continue it with --resume (checkpoint.resume=true), or choose "
                "another logging.run_name"
            )
        raise RunTaken(
            f"{self.path} is not empty and no run directory (it holds {', '.join(others[:3])}); choose another "
            "logging.run_name or logging.runs_dir"
        )

    def _write_config(self, config: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            earlier = self.config_path.read_text(encoding="utf-8")
            if earlier == config:
                return
            count = sum(re.fullmatch(r"config\.\d+\.yaml", entry.name) is not None for entry in self.path.iterdir())
            self.write_text(f"config.{count + 1}.yaml", earlier)
        self.write_text("config.yaml", config)


def run_of(path: str | os.PathLike[str]) -> Path | None:
    """Return the run directory that `path` is, or that has the checkpoint `path`; None: neither."""
    folders = (Path(path), Path(path).resolve().parent.parent)
    return next((folder for folder in folders if (folder / "checkpoints").is_dir()), None)


def free_run_name(runs_dir: str | os.PathLike[str], stem: str, suffix: str = "") -> str:
    """Return `stem`, or `stem-2`, `stem-3`, ...: the first that, with `suffix` behind it, is not in `runs_dir` yet. See
    `clean_run_name`."""
    clean = clean_run_name(stem)
    number, name = 1, clean
    while (Path(runs_dir) / f"{name}{suffix}").exists():
        number += 1
        name = f"{clean}-{number}"
    return name


def clean_run_name(stem: str) -> str:
    """Return `stem` with every character that does not belong in a folder's name as '-'."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "run"


_PACKAGES = ("uirl", "torch", "transformers", "tokenizers", "numpy", "pillow")
"""Those that decide what is sampled, fed and learned."""
_SERVERS = ("vllm", "sglang")
"""Backends with the name of the package that samples."""


def origin_of(
    model: ModelConfig, inference: InferenceConfig, packages: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """Return what a store records of the trajectories of a run: versions of the software (of further `packages` too),
    model and engine, and `more`.

    It is the same for equal configs on equal machines, so that a store keeps it once.
    """
    backend, packages = inference.backend, [*_PACKAGES, *packages]
    packages += [backend] if backend in _SERVERS else []
    packages += ["peft"] if model.use_lora else []
    packages += ["bitsandbytes"] if model.quantization is not None else []
    return {
        "software": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "model": {
            "name": model.model_name,
            "local_path": model.local_path,
            "dtype": model.dtype,
            "lora": model.lora.r if model.use_lora else None,
            **({} if model.quantization is None else {"quantization": model.quantization}),
        },
        "engine": backend,
        **more,
    }


@functools.cache
def _version(package: str) -> str | None:
    """Return the version of an installed package; None: it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

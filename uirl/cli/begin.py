"""`uirl configs`, `uirl init` and `uirl doctor`: what there is to begin with, on this machine."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import platform
import re
import shutil
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uirl.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).parents[1] / "configs"
"""The configs that come along."""
START = FOLDER / "start"
"""What `uirl init` copies."""


def add_command(commands: Any) -> None:
    """Add the commands to the parser of `uirl`."""
    configs = commands.add_parser("configs", help="list the configs that come along, or print one")
    configs.add_argument("name", nargs="?", help="print this one, to begin your own with")
    configs.set_defaults(run=_configs)
    init = commands.add_parser("init", help="begin a project: a config, an environment and a test in a new folder")
    init.add_argument("folder", metavar="FOLDER", help="made anew")
    init.set_defaults(run=_init)
    doctor = commands.add_parser("doctor", help="say what this machine has, and how to get what is missing")
    doctor.set_defaults(run=_doctor)


def shipped() -> dict[str, Path]:
    """Return name -> path of the configs that come along; that of a run under verl is not one of `uirl train`."""
    files = [path for path in sorted(FOLDER.rglob("*.yaml")) if path.parent != START and path.stem != "verl_config"]
    return {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in files}


def path_of(word: str) -> str:
    """Return the path that a word of a command line stands for: of a config that comes along, if it has that name
    (`screen`, `configs/screen.yaml`) and there is no such file or folder here. Raises ConfigError where there is none
    and the word looks like such a name."""
    if os.path.exists(word):
        return word
    name = word.removeprefix("configs/").removesuffix(".yaml")
    known = shipped() | {"verl_config": FOLDER / "verl_config.yaml"}
    if name not in known and (word.startswith("configs/") or Path(word).suffix not in (".yaml", ".yml")):
        raise ConfigError(f"there is no file, run or config {word!r}; {did_you_mean(name, known)}")
    return str(known.get(name, word))


def _first_sentence(path: Path) -> str:
    lines = itertools.takewhile(lambda line: line.startswith("# "), path.read_text("utf-8").splitlines())
    return re.split(r"[.:] ", " ".join(line.removeprefix("# ") for line in lines) + " ")[0]


def _configs(options: argparse.Namespace) -> int:
    if options.name is None:
        width = min(shutil.get_terminal_size().columns, 120) - 1
        for name, path in shipped().items():
            print(name)
            print(textwrap.fill(_first_sentence(path), width, initial_indent="    ", subsequent_indent="    "))
        print("\nuirl train NAME runs one; uirl configs NAME > my.yaml begins your own with it")
        return 0
    found = shipped().get(options.name)
    if found is None:
        raise ConfigError(f"there is no config {options.name!r}; {did_you_mean(options.name, shipped())}")
    print(found.read_text("utf-8"), end="")
    return 0


def _init(options: argparse.Namespace) -> int:
    folder = Path(options.folder)
    if folder.exists():
        raise ConfigError(f"{folder} is there already; name a new folder")
    folder.mkdir(parents=True)
    for file in sorted(START.iterdir()):
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
            print(folder / file.name)
    print(f"\ncd {folder}\nuirl check largest.yaml\nuirl train largest.yaml")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    for what, look in PARTS.items():
        try:
            has, found = True, look()
        except ConfigError as error:
            has, found = False, str(error)
        print(f"{'ok  ' if has else '-   '}{what}: {found}")
    return 0


def _python() -> str:
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"


def _machine() -> str:
    from uirl.training.plan import memory_here

    _, limit = memory_here("cpu")
    return f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores, " + (
        "memory not known" if limit is None else f"{limit / 2**30:.1f} GiB of memory free"
    )


def _gpu() -> str:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{', '.join(names)} (torch {torch.__version__})"
    if torch.version.cuda is None:
        raise ConfigError(f"torch {torch.__version__} is built for CPUs; for a GPU: https://pytorch.org/get-started")
    raise ConfigError(f"torch {torch.__version__} sees none; `nvidia-smi` says whether the driver does")


def _browser() -> str:
    from uirl.environments.browser.process import find_executable

    return find_executable() or "that of Playwright"


def _desktop() -> str:
    from uirl.environments.desktop.session import find_programs

    return ", ".join(find_programs())


def _sandbox() -> str:
    found = shutil.which("bwrap")
    if found is None:
        remedy = "Debian: apt-get install bubblewrap" if sys.platform == "linux" else "it exists on Linux alone"
        raise ConfigError(f"no bubblewrap ({remedy}); programs of a policy then run as this user, in limits")
    return found


def _package(module: str, extra: str, what: str) -> Callable[[], str]:
    def look() -> str:
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"{what}: pip install 'uirl[{extra}]'")
        from importlib.metadata import version

        return f"{version(module)}"

    return look


PARTS: dict[str, Callable[[], str]] = {
    "Python": _python,
    "machine": _machine,
    "GPU": _gpu,
    "browser": _browser,
    "sandbox": _sandbox,
    "desktop": _desktop,
    "ray": _package("ray", "ray", "many machines"),
    "vllm": _package("vllm", "vllm", "a fast engine on a GPU"),
    "sglang": _package("sglang", "sglang", "another such engine"),
    "bitsandbytes": _package("bitsandbytes", "bitsandbytes", "weights of 4 bits, an optimiser of 8"),
    "verl": _package("verl", "verl", "learning on many GPUs"),
    "mcp": _package("mcp", "mcp", "tools of MCP servers"),
    "gymnasium": _package("gymnasium", "gymnasium", "environments of Gymnasium"),
    "fastapi": _package("fastapi", "server", "serving environments and models"),
}
"""What `uirl doctor` looks for."""

"""Tasks in Harbor's format: folders with an instruction, a Dockerfile, tests that write a reward, and a solution.

No container is built. A task is played in a `ShellTool` on this machine's own system; what its Dockerfile asks for and
the system does not have is refused by name. The tests come in at the end, when no process of the policy is left, with
an environment and folders that it never could write.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import random
import re
import shlex
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from uirl.config.section import Count, PathText, Positive
from uirl.environments.options import ConfigurableEnvironment, EnvironmentOptions, Names, OptionsLike
from uirl.environments.tool_use.environment import ToolEnvironment
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.tools import ShellTool, ToolRegistry
from uirl.tools.sandbox.room import PATH, Ran
from uirl.types import Action, Observation, StepResult, Task

_LOG = logging.getLogger(__name__)
_SYSTEMS = ("debian", "ubuntu", "python", "buildpack-deps")
"""Base images that a Debian stands for."""
_NO_MATTER = re.compile(r"cmd|entrypoint|expose|healthcheck|label|maintainer|shell|stopsignal|user|volume")
_REFUSED = (("environment", "docker_image"), ("environment", "gpus"), ("environment", "mcp_servers"), ("steps",))
_TIDY = re.compile(r"(apt-get|apt)\s+(-\S+\s+)*(update|clean|autoremove)\b|rm\s+-rf\s+/var/(lib|cache)/apt\S*")
_APT = re.compile(r"(?:apt-get|apt)\s.*?\binstall\b(.*)")
_PIP = re.compile(r"(?:pip3?|python3?\s+-m\s+pip|uv\s+pip)\s+install\b(.*)")
_NETWORK = re.compile(r"^\s*(?:sudo\s+)?(apt-get|apt|curl|wget|uvx|uv|pip3?|npm|git\s+clone)\s", re.MULTILINE)
REWARD_BYTES, LARGEST = 64 << 10, 1e6
"""Of the file of a reward, and of a reward: beyond it there is none."""


class HarborOptions(EnvironmentOptions):
    """Tasks in Harbor's format, without containers."""

    key = "harbor"

    path: PathText = "tasks"
    """One task (a folder with `task.toml`), or a folder of them."""
    images: Names = ()
    """Base images, as Dockerfiles name them, that this system may stand for beside Debian, Ubuntu and Python."""
    partial_reward: bool = True
    """Pay what the tests write; false: 1 for a success, else nothing."""
    call_seconds: Positive = 60.0
    """Of one call of the shell. All calls together have `agent.timeout_sec` of the task."""
    memory_mb: Count = 1024
    """The most that the processes of one call may use; a task that asks for less gets less."""
    disk_mb: Count = 256
    """The most that the files of an episode may use, in memory; a task that asks for less gets less."""
    max_turns: Count = 40
    """Replies until the episode is over and the tests run."""
    describe: Literal["template", "prompt", "none"] = "template"
    """How the policy hears of its tool: see `ToolEnvironment`."""
    action_format: str = "qwen"
    """Name of the parser that reads the calls."""
    instructions: str = "Do the task with the shell. When it is done, say so without a call."
    """The system prompt."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """A task as it is read."""

    id: str
    folder: Path
    instruction: str
    settings: Mapping[str, Any]
    workdir: str
    environment: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[str, Any]] = field(default_factory=list)
    """('copy', path inside -> file) and ('run', folder, script) in order."""
    tops: tuple[str, ...] = ()

    def setting(self, section: str, name: str, default: float) -> float:
        return float(self.settings.get(section, {}).get(name, default))


class HarborEnvironment(ToolEnvironment, ConfigurableEnvironment):
    """The instruction is the goal, and the policy has a shell. A reply without a call, the last turn, or the end of the
    time that the task gives runs `tests/test.sh`. The reward is what that writes; 1 is success."""

    fixed_start = True
    scored_at_end = True
    options_class = HarborOptions
    options: HarborOptions

    def __init__(self, config: Any = None, options: OptionsLike = None, **keys: Any) -> None:
        """Read the tasks. Options: see `HarborOptions`. Raises ConfigError where there are none, and for a task that
        needs what cannot be had here."""
        chosen = HarborOptions.from_arguments(options, keys)
        super().__init__(
            config,
            registry=[ShellTool()],
            describe=chosen.describe,
            action_format=chosen.action_format,
            instructions=chosen.instructions,
            max_turns=chosen.max_turns,
        )
        self.options = chosen
        self._recipes = {one.id: one for one in _tasks_in(Path(chosen.path), tuple(chosen.images))}
        self._recipe = next(iter(self._recipes.values()))
        self._shell: ShellTool | None = None
        self._ended = self._shown = False
        self._turns = 0
        for recipe in self._recipes.values():
            if any(kind == "run" for kind, _ in recipe.steps):
                self._built(recipe).close()

    def tasks(self) -> list[Task]:
        """Return one task for each folder."""
        return [Task(one.id, goal=one.instruction, checks={"task": one.id}) for one in self._recipes.values()]

    async def reset(self, task: Task | None = None, seed: int | None = None) -> Any:
        """Return the instruction. Raises ConfigError for a task that there is not."""
        ids = sorted(self._recipes)
        id = random.Random(seed).choice(ids) if task is None else str(task.checks.get("task", task.id))
        if id not in self._recipes:
            raise ConfigError(f"harbor: no task {id!r} in {self.options.path}; expected one such as {ids[:5]}")
        if self._shell is not None:
            self._shell.close()
        self._recipe, self._ended, self._shown, self._turns = self._recipes[id], False, False, 0
        await asyncio.to_thread(self._require_reward)
        self._shell = await asyncio.to_thread(self._built, self._recipe)
        self._results, self._question, self._lowest = [], self._recipe.instruction, 0.0
        self.registry = self._running = ToolRegistry([self._shell])
        return Observation(self._recipe.instruction)

    async def _step(self, action: Action) -> StepResult:
        self._turns += 1
        if self._shell is not None:
            # Calls that hang, and then tests that hang, end before whoever plays gives the step up.
            self._shell.deadline = time.monotonic() + 0.4 * self._step_limit
        result = await super()._step(action)
        if result.done or (self._turns < self.options.max_turns and self._shell is not None and self._shell.left > 0):
            return result
        ended = await self._answer(Action())
        seen = Observation("This was the last call.", (), ended.observation.info, result.observation.tool_results)
        return StepResult(seen, ended.reward, True, False)

    async def judge(self, answer: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Run the tests on what stands there."""
        reward, info = await asyncio.to_thread(self._verify)
        return "", reward, True, info

    async def score_now(self) -> tuple[float, dict[str, Any]] | None:
        """Run the tests on what stands there; the episode ends here."""
        return None if self._shell is None or self._ended else await asyncio.to_thread(self._verify)

    def expert_action(self) -> Action:
        """Return the call of the shell that runs `solution/solve.sh`, and then that it is done."""
        script = self._recipe.folder / "solution" / "solve.sh"
        if self._shown or not script.is_file() or self._shell is None:
            return Action(text="Done.")
        self._shown = True
        if len(files := _files(script.parent, "solution")) > 1:
            self._shell.room.put(files)
        variables = _plain(self._recipe.settings.get("solution", {}).get("env", {}), self._recipe.id)
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        return Action.of("shell", command=exports + script.read_text("utf-8"))

    @property
    def has_demonstrator(self) -> bool:
        return all((one.folder / "solution" / "solve.sh").is_file() for one in self._recipes.values())

    def spawn(self) -> HarborEnvironment:
        """Return another instance over the same tasks."""
        other = copy.copy(self)
        other._shell, other._results, other._ended = None, [], False
        other.registry = other._running = ToolRegistry([ShellTool()])
        return other

    async def close(self) -> None:  # type: ignore[override]
        """Free the files of the episode."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.close()

    def _built(self, recipe: _Recipe) -> ShellTool:
        """Return a shell in the state that the Dockerfile says. Raises ConfigError where a RUN of it fails."""
        limits = self.options
        shell = ShellTool(
            seconds=limits.call_seconds,
            total_seconds=recipe.setting("agent", "timeout_sec", 600.0),
            memory_mb=int(min(limits.memory_mb, recipe.setting("environment", "memory_mb", math.inf))),
            disk_mb=int(min(limits.disk_mb, recipe.setting("environment", "storage_mb", math.inf))),
            folder=recipe.workdir,
            environment=recipe.environment,
            tops=(*recipe.tops, "solution"),
        )
        try:
            for kind, what in recipe.steps:
                if kind == "copy":
                    shell.room.put(what)
                    continue
                folder, script = what
                seconds = recipe.setting("environment", "build_timeout_sec", 600.0)
                ran = shell.room.run(f"set -e\n{script}", seconds, folder=folder, environment=recipe.environment)
                if ran.status or ran.stopped:
                    raise ConfigError(
                        f"harbor: {recipe.id}: RUN {script[:200]!r} failed without a network and as no real root: "
                        f"{ran.output[-300:].strip()} {ran.stopped or ''}; expected what this machine's system can do"
                    )
        except BaseException:
            shell.close()
            raise
        return shell

    def _require_reward(self) -> None:
        """Raise EnvironmentFailure where the tests write no reward about an untouched start, before a policy has acted.
        Asked once for each task: where they then write none about an episode, what the policy left is why."""
        if self._recipe.folder in _SPEAKING:
            return
        shell = self._built(self._recipe)
        try:
            parts, ran = _tested(self._recipe, shell, math.inf)
        finally:
            shell.close()
        if parts is None:
            said = f"{ran.output[-300:].strip()!r} {ran.stopped or ''}"
            raise EnvironmentFailure(
                f"harbor: {self._recipe.id}: tests/test.sh writes no reward about an untouched start; expected a "
                f"number in /logs/verifier/reward.txt or reward.json. It said {said}"
            )
        _SPEAKING.add(self._recipe.folder)

    def _verify(self) -> tuple[float, dict[str, Any]]:
        """Return (reward, info) of the tests. No reward is a loss: see `_require_reward`."""
        assert self._shell is not None
        self._ended = True
        parts, ran = _tested(self._recipe, self._shell, 0.4 * self._step_limit)
        if parts is None:
            return 0.0, {"success": False, "no_reward": ran.stopped or f"status {ran.status}"}
        reward = parts["reward"] if "reward" in parts else sum(parts.values()) / len(parts)
        success = parts["reward"] >= 1 if "reward" in parts else all(value >= 1 for value in parts.values())
        return reward if self.options.partial_reward else float(success), {"success": success, "rewards": parts}


_SPEAKING: set[Path] = set()
"""Tasks whose tests write a reward about an untouched start, in this process."""


def _tested(recipe: _Recipe, shell: ShellTool, limit: float) -> tuple[dict[str, float] | None, Ran]:
    """Run the tests; return the rewards that they wrote by name, None where there are none."""
    room = shell.room
    room.put({"verifier": None, "logs": None, **_files(recipe.folder / "tests", "tests")}, "own")
    variables = _plain(recipe.settings.get("verifier", {}).get("env", {}), recipe.id)
    # Programs come from the system alone, and Python looks into no folder of the policy before its own modules.
    clean = {"PATH": PATH, "PYTHONSAFEPATH": "1", "PYTHONPATH": "/tests", "PYTHONNOUSERSITE": "1"}
    clean |= {"PYTHONDONTWRITEBYTECODE": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    ran = room.run(
        "bash /tests/test.sh",
        min(recipe.setting("verifier", "timeout_sec", 600.0), limit),
        folder=recipe.workdir,
        environment={**recipe.environment, **clean, **variables},
        also={"/tests": "own/tests", "/logs": "own/logs", "/logs/verifier": "own/verifier"},
    )
    found = (room.read(f"own/verifier/reward.{kind}", REWARD_BYTES) for kind in ("json", "txt"))
    return _rewards(*found), ran


def _rewards(as_json: bytes | None, as_text: bytes | None) -> dict[str, float] | None:
    try:
        if as_json is not None:
            told = json.loads(as_json)
            found = dict(told) if isinstance(told, dict) else {"reward": told}
        elif as_text is not None:
            found = {"reward": float(as_text)}
        else:
            return None
        numbers = {ascii(k)[1:-1]: float(v) for k, v in found.items() if isinstance(v, int | float)}
    except (ValueError, OverflowError, RecursionError):
        return None
    fit = numbers and all(math.isfinite(one) and abs(one) <= LARGEST for one in numbers.values())
    return numbers if fit else None


# -- reading ---------------------------------------------------------------------------------------------------------


def _tasks_in(path: Path, images: tuple[str, ...]) -> Iterator[_Recipe]:
    folders = [path] if (path / "task.toml").is_file() else sorted(p.parent for p in path.glob("*/task.toml"))
    if not folders:
        raise ConfigError(f"harbor: no task in {path}; expected task.toml in it, or in folders of it")
    for folder in folders:
        yield _read_task(folder.resolve(), images)


def _read_task(folder: Path, images: tuple[str, ...]) -> _Recipe:
    id = folder.name
    try:
        settings = tomllib.loads((folder / "task.toml").read_text("utf-8"))
        instruction = (folder / "instruction.md").read_text("utf-8").strip()
        test = (folder / "tests" / "test.sh").read_text("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"harbor: {id}: {error}; expected task.toml, instruction.md and tests/test.sh") from error
    for keys in _REFUSED:
        value: Any = settings
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value and not (keys[-1] == "docker_image" and _stands_for(str(value), images)):
            raise ConfigError(f"harbor: {id}: {'.'.join(keys)} = {value!r} cannot be had here; leave the task out")
    if called := sorted(set(_NETWORK.findall(test))):
        _tell(f"{id}: tests/test.sh calls {', '.join(called)}: there is no network, and nothing is installed for it")
    given = settings.get("environment", {})
    recipe = _Recipe(id, folder, instruction, settings, str(given.get("workdir") or "/app"))
    place = folder / "environment"
    if any(place.glob("docker-compose.y*ml")):
        raise ConfigError(f"harbor: {id}: environment/docker-compose.yaml needs containers; leave the task out")
    if not (place / "Dockerfile").is_file():
        return _with(recipe, {}, [("copy", _files(place, recipe.workdir))] if place.is_dir() else [])
    return _docker(recipe, place, images)


def _with(recipe: _Recipe, environment: dict[str, str], steps: list[tuple[str, Any]], workdir: str = "") -> _Recipe:
    environment = {**environment, **_plain(recipe.settings.get("environment", {}).get("env", {}), recipe.id)}
    inside = [path for kind, what in steps if kind == "copy" for path in what]
    inside += [what[0] for kind, what in steps if kind == "run"]
    tops = {PurePosixPath("/" + path.lstrip("/")).parts[1:2] for path in inside}
    names = tuple(sorted(part for top in tops for part in top))
    if taken := set(names) & {"usr", "bin", "sbin", "lib", "lib64", "etc", "proc", "dev", "tests"}:
        raise ConfigError(f"harbor: {recipe.id}: the Dockerfile writes to /{taken.pop()}, which is the system's here")
    chosen = str(recipe.settings.get("environment", {}).get("workdir") or workdir or recipe.workdir)
    return _Recipe(recipe.id, recipe.folder, recipe.instruction, recipe.settings, chosen, environment, steps, names)


def _docker(recipe: _Recipe, place: Path, images: tuple[str, ...]) -> _Recipe:
    """Return the task with what its Dockerfile says. Raises ConfigError for what cannot be had here."""
    environment: dict[str, str] = {}
    steps: list[tuple[str, Any]] = []
    folder, bases = "/", 0
    text = re.sub(r"^\s*#.*\n", "", (place / "Dockerfile").read_text("utf-8") + "\n", flags=re.MULTILINE)
    for line in re.sub(r"\\\s*\n", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        name, rest = word.lower(), rest.strip()
        refusal = ConfigError(f"harbor: {recipe.id}: {line.strip()[:200]!r} cannot be done here; leave the task out")
        if not name or _NO_MATTER.fullmatch(name):
            continue
        if "<<" in rest:
            raise refusal
        if name == "run":
            script = _own_part(rest, refusal)
            steps += [("run", (folder, script))] if script else []
            continue
        rest = re.sub(r"\$\{?(\w+)\}?", lambda found: {"PATH": PATH, **environment}.get(found[1], ""), rest)
        if name == "from":
            bases += 1
            if bases > 1 or not _stands_for(rest.split()[0], images):
                raise refusal
        elif name in ("env", "arg"):
            parts = shlex.split(rest)
            if "=" not in parts[0]:
                parts = ["=".join((parts[0], " ".join(parts[1:])))]
            pairs = (part.partition("=") for part in parts)
            environment.update({key: value for key, _, value in pairs if value or name == "env"})
        elif name == "workdir":
            folder = str(PurePosixPath(folder) / rest)
            steps += [("copy", {folder: None})] if folder.strip("/") else []
        elif name in ("copy", "add"):
            if "--from" in rest or "://" in rest:
                raise refusal
            steps.append(("copy", _copied(rest, place, folder, refusal)))
        else:
            raise refusal
    return _with(recipe, environment, steps, folder if folder != "/" else "")


def _own_part(script: str, refusal: ConfigError) -> str:
    """Return a RUN without what the system has already. Raises the refusal for packages that it has not."""
    kept = []
    for command in re.split(r"&&|;", script):
        command = command.strip()
        apt, pip = _APT.match(command), _PIP.match(command)
        if apt or pip:
            words = shlex.split((apt or pip)[1])  # type: ignore[index]
            names = [re.split(r"[=<>\[~!]", part)[0] for part in words if not part.startswith("-")]
            missing = [one for one in names if not (_has_package if apt else _has_module)(one)]
            if missing:
                raise ConfigError(f"{refusal}: this machine has no {', '.join(missing)}")
        elif command and not _TIDY.match(command):
            kept.append(command)
    untouched = not any(pattern.search(script) for pattern in (_APT, _PIP, _TIDY))
    return script if untouched else " && ".join(kept)


@cache
def _has_package(name: str) -> bool:
    done = subprocess.run(["dpkg-query", "-W", "-f=${Status}", name], capture_output=True, check=False, text=True)
    return done.stdout.endswith(" installed")


@cache
def _has_module(name: str) -> bool:
    ask = "import importlib.metadata, sys; importlib.metadata.version(sys.argv[1])"
    return not subprocess.run(["/usr/bin/python3", "-I", "-c", ask, name], capture_output=True, check=False).returncode


def _stands_for(image: str, images: tuple[str, ...]) -> bool:
    plain = image.removeprefix("docker.io/").removeprefix("library/")
    if image in images or plain in images:
        return True
    if plain.partition(":")[0] not in _SYSTEMS or "alpine" in plain:
        return False
    _tell(f"{plain}: this machine's own system stands for it, with the versions that it has")
    return True


@cache
def _tell(words: str) -> None:
    """Warn a person once."""
    _LOG.warning("harbor: %s", words)


def _copied(rest: str, place: Path, folder: str, refusal: ConfigError) -> dict[str, Path]:
    """Return path inside -> file of a COPY."""
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    *sources, target = [one for one in words if not one.startswith("--")]
    inside = str(PurePosixPath(folder) / target)
    found = [path for source in sources for path in sorted(place.glob(source.strip("/") or "."))]
    if not found or not all(path.resolve().is_relative_to(place.resolve()) for path in found):
        raise refusal
    copied: dict[str, Path] = {}
    for path in found:
        if path.is_dir():
            copied |= _files(path, inside)
        else:
            whole = target.endswith(("/", "/.")) or target == "." or len(found) > 1
            copied[f"{inside}/{path.name}" if whole else inside] = path
    return copied


def _files(folder: Path, inside: str) -> dict[str, Path]:
    """Return path inside -> file, of all files, links and folders in a folder."""
    return {f"{inside}/{path.relative_to(folder)}": path for path in sorted(folder.rglob("*"))}


def _plain(variables: Mapping[str, Any], id: str) -> dict[str, str]:
    """Return variables of a task. Raises ConfigError for one that asks for a variable of this machine."""
    for name, value in variables.items():
        if "${" in str(value):
            raise ConfigError(f"harbor: {id}: {name} = {value!r} asks for a variable of this machine; write its value")
    return {str(name): str(value) for name, value in variables.items()}

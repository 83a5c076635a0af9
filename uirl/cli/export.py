"""`uirl export`: what a run made, for other programs: HF weights, a PEFT adapter, examples for fine-tuning."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uirl.cli.share import Hub, data_card, model_card
from uirl.errors import CheckpointError, ConfigError, RolloutFailure
from uirl.runtime.files import require_plain, write_atomically

if TYPE_CHECKING:
    from uirl.storage.trajectories import TrajectorySummary
    from uirl.types import Task

FORMATS = {
    "hf": "a folder that from_pretrained, vLLM and SGLang read, adapters merged",
    "peft": "the adapter alone, as peft writes it",
    "sft": "the solved training episodes as chat messages, one JSON object per line",
}


def add_command(commands: Any) -> None:
    """Add the command to the parser of `uirl`."""
    export = commands.add_parser("export", help="write a run's policy or episodes for other programs")
    export.add_argument("path", metavar="RUN_OR_CHECKPOINT", help="run directory or checkpoint, of uirl or of verl")
    formats = "; ".join(f"{name}: {text}" for name, text in FORMATS.items())
    export.add_argument("--to", required=True, choices=FORMATS, help=formats)
    export.add_argument("--out", metavar="PATH", help="where to write (default: RUN/exports/...)")
    export.add_argument(
        "--each-reply",
        action="store_true",
        help="sft: an example per reply, with what was said before it as its prompt",
    )
    export.add_argument(
        "--system-prompt", metavar="TEXT", help="sft: the first message (default: the run's; '' for none)"
    )
    export.add_argument(
        "--trust-remote-code", action="store_true", help="let Python code run that lies with the checkpoint's model"
    )
    export.add_argument("--push", metavar="OWNER/NAME", help="send it to the hub of Hugging Face as well")
    export.add_argument("--public", action="store_true", help="push: where everybody can read it (default: private)")
    export.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes to the run's config")
    export.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    source = Path(options.path)
    if not source.exists():
        raise CheckpointError(f"{source} does not exist; expected a run directory or a checkpoint")
    if options.public and not options.push:
        raise ConfigError("--public says how to push, and nothing is pushed; add --push OWNER/NAME")
    out, kind = Path(options.out) if options.out is not None else None, "dataset" if options.to == "sft" else "model"
    hub = Hub(options.push, kind, public=options.public) if options.push else None
    if options.to == "sft":
        told = {"each_reply": options.each_reply, "system_prompt": options.system_prompt}
        written = export_episodes(source, out, options.overrides, **told)
    else:
        code = ["model.trust_remote_code=true"] if options.trust_remote_code else []
        written = export_policy(source, options.to, out, [*options.overrides, *code])
    print(written)
    if hub is not None:
        print(hub.push(_files(written), f"{options.to} of {source.resolve().name}"))
    return 0


def _files(written: Path) -> dict[str, Path]:
    """Return what belongs to an export: name in a repository -> file."""
    if written.is_dir():
        return {str(path.relative_to(written)): path for path in sorted(written.rglob("*")) if path.is_file()}
    pictures = sorted(written.with_name(f"{written.stem}_images").glob("*"))
    files = {str(path.relative_to(written.parent)): path for path in (written, *pictures)}
    return files | {"README.md": _card_of(written)}


def _card_of(file: Path) -> Path:
    return file.with_name(f"{file.stem}_card.md")


def export_policy(source: Path, kind: str, out: Path | None = None, overrides: Sequence[str] = ()) -> Path:
    """Write the policy of a run's newest checkpoint, or of one checkpoint, as 'hf' or 'peft'; return its folder.
    `overrides`: changes to the config that is stored with it.

    Raises CheckpointError for what holds no policy, or no adapter where one is asked for, and ConfigError where that
    config reaches outside of the run (see `override_stored`).
    """
    if _is_of_verl(source):
        return _of_verl(source, kind, out)
    from uirl.config.stored import override_stored
    from uirl.learner import export_hf, export_peft, load_policy
    from uirl.storage import RunDirectory, run_of
    from uirl.training.evaluation.measure import locate

    checkpoint, stored = locate(source)
    config = override_stored(stored, overrides, run_of(source) or source, section=("model.", "checkpoint."))
    policy, run = load_policy(checkpoint, model=config.model), run_of(source)
    finished = run is not None and RunDirectory(run).summary_path.is_file()
    summary = RunDirectory(run).read_json("summary.json") if run is not None and finished else None
    write = {"hf": export_hf, "peft": export_peft}[kind]
    card = model_card(stored.model, stored.environment.label, summary, checkpoint.name, kind)
    return write(out or _default(source, f"{checkpoint.name}-{kind}"), policy, card)


def export_episodes(
    source: Path,
    out: Path | None = None,
    overrides: Sequence[str] = (),
    *,
    each_reply: bool = False,
    system_prompt: str | None = None,
) -> Path:
    """Write the solved training episodes of a run and return the file, with a card beside it; the held-out ones stay
    held out.

    Args:
        source: the run directory.
        out: the file; None: `exports/sft.jsonl` in the run.
        overrides: changes to the run's config.
        each_reply: see `export_sft`.
        system_prompt: the first message of each; None: what the run told its policy. Empty: none.

    Raises:
        ConfigError: there is no run, nothing was solved, or the run's environment cannot be asked for its prompt.
    """
    from uirl.config import ConfigStore
    from uirl.storage import RunDirectory, TrajectoryStore, export_sft

    path = RunDirectory(source).trajectories_path
    if not path.is_file():
        raise ConfigError(f"{source} holds no {path.name}; expected a run directory, as in runs/screen")
    require_plain(source)
    target = out or _default(source, "sft.jsonl")
    prompt, tools = _told(source, overrides, system_prompt)
    with TrajectoryStore(path, read_only=True) as store:
        if not any(_imitated(episode) for episode in store.list()):
            raise ConfigError(f"no training episode of {source} was solved, so there is nothing to imitate")
        written = export_sft(store, target, _imitated, system_prompt=prompt, tools=tools, each_reply=each_reply)
    stored = ConfigStore.from_yaml(RunDirectory(source).config_path)
    write_atomically(_card_of(target), data_card(stored.model, stored.environment.label, target, written))
    return target


def _imitated(episode: TrajectorySummary) -> bool:
    from uirl.storage.export import solved

    return solved(episode) and episode.split == "train" and episode.turns > 0


def _told(
    run: Path, overrides: Sequence[str], system_prompt: str | None
) -> tuple[str | Callable[[Task], str], Sequence[Mapping[str, Any]]]:
    """Return (system prompt or what says it of a task, schemas of the tools) of a run's policy, from its config; a
    given prompt comes without tools where the environment cannot be made."""
    from uirl.config import ConfigStore
    from uirl.config.stored import override_stored
    from uirl.environments import create_environment
    from uirl.storage import RunDirectory

    stored = ConfigStore.from_yaml(RunDirectory(run).config_path)
    if system_prompt is None:
        system_prompt = stored.inference.system_prompt
    try:
        settings = override_stored(stored, overrides, run, section=("environment.",)).environment
        settings.require_named()
        environment = create_environment(settings.name, settings.options_for("train"), settings)
        return environment.prompt_prefix_of if system_prompt is None else system_prompt, environment.tool_schemas()
    except (ConfigError, RolloutFailure) as problem:
        if system_prompt is not None:
            return system_prompt, ()
        raise ConfigError(
            f"the environment of {run} cannot be asked what its policy was told ({problem}); say it: --system-prompt "
            "TEXT, or --system-prompt '' for nothing"
        ) from problem


def _default(source: Path, name: str) -> Path:
    """Return `exports/<name>` in the run that `source` is, or is a checkpoint of."""
    from uirl.storage import run_of

    run = run_of(source)
    if run is None:
        raise ConfigError(f"{source} is no run directory and lies in none; say where to write: --out PATH")
    require_plain(run)
    return run / "exports" / name


def _is_of_verl(source: Path) -> bool:
    marks = ("latest_checkpointed_iteration.txt", "checkpoints/latest_checkpointed_iteration.txt", "fsdp_config.json")
    return (source / "actor").is_dir() or any((source / mark).is_file() for mark in marks)


def _of_verl(source: Path, kind: str, out: Path | None) -> Path:
    from uirl.integrations.verl import export_checkpoint

    if kind == "peft":
        raise CheckpointError(
            f"{source} is a checkpoint of verl's, which keeps an adapter of its own in <checkpoint>/actor/lora_adapter "
            "where it trained one; --to hf merges it into the weights"
        )
    return export_checkpoint(source, out)

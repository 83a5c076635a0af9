"""The command: `uirl train`, `uirl eval`, `uirl check`, `uirl serve`, `uirl serve-model`, `uirl verl`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from uirl.cli import export, serve, serve_model, verl
from uirl.cli.imports import make_importable
from uirl.errors import UirlError

if TYPE_CHECKING:
    from uirl.training import RayPPOTrainer


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 done, 1 a check failed, 2 an error that the person can mend, 130 interrupted."""
    options = _options(arguments)
    try:
        return int(options.run(options))
    except UirlError as error:
        print(f"uirl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("uirl: interrupted", file=sys.stderr)
        return 130


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was typed. Changes to the config may stand before and behind options; argparse reads one place alone."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    changes = getattr(options, "overrides", None)
    if rest and (changes is None or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides += rest
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="uirl", description="Reinforcement learning for agents that use things.")
    commands = parser.add_subparsers(required=True, metavar="command")
    train = commands.add_parser("train", help="train a policy as a config says")
    _add_config(train)
    train.add_argument("--resume", action="store_true", help="continue the run of this name from its newest checkpoint")
    train.set_defaults(run=_train)
    evaluate = commands.add_parser("eval", help="measure a run or a checkpoint on held-out episodes")
    evaluate.add_argument(
        "path", nargs="?", metavar="RUN_OR_CHECKPOINT", help="run directory, checkpoint or HF model folder"
    )
    evaluate.add_argument("--checkpoint", metavar="PATH", help="the same, as an option")
    evaluate.add_argument("--tasks", metavar="FILE", help="JSON list of tasks; default: those of the environment")
    evaluate.add_argument("--episodes", type=int, default=256, help="episodes in all (default 256)")
    evaluate.add_argument("--tries", type=int, default=1, help="episodes per instance, for pass@k (default 1)")
    evaluate.add_argument("--temperature", type=float, help="sampling temperature; default: that of training")
    evaluate.add_argument("--json", metavar="FILE", dest="json_path", help="write the report there; '-': print it only")
    evaluate.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes to the run's config")
    evaluate.set_defaults(run=_eval)
    check = commands.add_parser("check", help="prove in seconds that a config can be trained")
    _add_config(check)
    check.set_defaults(run=_check)
    export.add_command(commands)
    serve.add_command(commands)
    serve_model.add_command(commands)
    verl.add_command(commands)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="config.yaml | section.key=value", help="a config and changes")
    parser.add_argument("--config", metavar="FILE", help="the config, as an option")


def _split(options: argparse.Namespace) -> tuple[str | None, list[str]]:
    """(path of the config or None, overrides); modules beside the config can be imported from here on."""
    paths = [a for a in [options.config] if a is not None] + [a for a in options.overrides if "=" not in a]
    if len(paths) > 1:
        raise UirlError(f"expected one config file, got {len(paths)}: {', '.join(paths)}")
    make_importable(config=paths[0] if paths else None)
    return (paths[0] if paths else None), [a for a in options.overrides if "=" in a]


def _train(options: argparse.Namespace) -> int:
    from uirl.config import load_config

    path, overrides = _split(options)
    config = load_config(path, [*overrides, *(["checkpoint.resume=true"] if options.resume else [])])
    if config.logging.run_name is None and path is not None:
        config.logging.run_name = _run_name(config.logging.runs_dir, Path(path).stem, options.resume)
    from uirl.training import RayPPOTrainer

    trainer = RayPPOTrainer(config)
    try:
        trainer.fit()
    except KeyboardInterrupt:
        print(f"uirl: interrupted; {_how_to_go_on(trainer)}", file=sys.stderr)
        return 130
    finally:
        trainer.cleanup()
    return 0


def _how_to_go_on(trainer: RayPPOTrainer) -> str:
    from uirl.learner import latest_checkpoint

    if trainer.run_path is None:
        return "the run had not begun"
    newest = latest_checkpoint(Path(trainer.config.checkpoint.output_dir or trainer.run_path / "checkpoints"))
    return "there is no checkpoint yet, --resume begins anew" if newest is None else f"--resume continues from {newest}"


def _run_name(runs_dir: str, stem: str, resume: bool) -> str:
    """The config's name; a new run gets a number where that is taken, a resumed one is the newest of them."""
    from uirl.storage import free_run_name

    free = free_run_name(runs_dir, stem)
    if not resume or free == stem:
        return free
    number = int(free.rsplit("-", 1)[1]) - 1
    return stem if number == 1 else f"{stem}-{number}"


def _eval(options: argparse.Namespace) -> int:
    from uirl.training.measure import measure
    from uirl.training.progress import percent, report_table

    words = [word for word in (options.checkpoint, options.path) if word is not None]
    if not words:
        raise UirlError("expected a run directory or a checkpoint, as in: uirl eval runs/screen")
    make_importable(opened=words[0])
    report = measure(
        words[0],
        tasks_path=options.tasks,
        episodes=options.episodes,
        tries=options.tries,
        temperature=options.temperature,
        overrides=words[1:] + options.overrides,
    )
    text = json.dumps(report.to_dict(), indent=2)
    if options.json_path == "-":
        print(text)
        return 0
    rows: dict[str, object] = {
        "success": percent(report.success, report.interval),
        "reward": report.reward,
        "episodes": report.episodes,
        "failures (left out)": report.failures,
        **({"the first failure": report.first_failure} if report.failures else {}),
        "turns": report.turns,
        **{f"pass@{k}": percent(value) for k, value in report.pass_at_k.items() if k > 1},
    }
    report_table(words[0], rows)
    report_table("per task", {name: _task_line(row) for name, row in report.tasks.items()})
    if options.json_path:
        from uirl.files import write_atomically

        write_atomically(options.json_path, text + "\n")
    return 0


def _task_line(row: dict[str, object]) -> str:
    from uirl.training.progress import percent

    return f"{percent(row['success'])}  ({row['episodes']} episodes, reward {row['reward']:.3f})"  # type: ignore[arg-type]


def _check(options: argparse.Namespace) -> int:
    from uirl.config import load_config
    from uirl.training.preflight import preflight

    path, overrides = _split(options)
    findings = preflight(load_config(path, overrides))
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}: {finding.detail}")
    return 0 if all(finding.ok for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())

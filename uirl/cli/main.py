"""The command: `uirl train`, `eval`, `check`, `evolve`, `judge`, `environments`, `serve`, `serve-model`, `verl`, ..."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from uirl.cli import apps, attack, audit, begin, compare, evolve, export, judge, plan, serve, serve_model, verl, view
from uirl.cli.imports import make_importable
from uirl.cli.learners import several_learners
from uirl.cli.options import add_config, count, read_config
from uirl.errors import ConfigError, UirlError
from uirl.runtime.terminal import lasting_output, short, visible

if TYPE_CHECKING:
    from uirl.learner.data_parallel import Ranks
    from uirl.training import EvaluationReport, RayPPOTrainer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 a check failed, 2 an error that the person can mend, 130
    interrupted, 141 nobody reads the output any more."""
    with lasting_output() as outputs:
        status = _run(_options(arguments))
        for output in outputs:
            output.flush()
        if status == INTERRUPTED and arguments is None:
            _leave(status)
        return UNREAD if status == 0 and any(output.gone for output in outputs) else status


INTERRUPTED = 130
UNREAD = 141
"""As of SIGPIPE: the reader left, as that of `uirl environments | head -1`."""


def _run(options: argparse.Namespace) -> int:
    from uirl.runtime.event_loop import stops_as_ctrl_c

    try:
        with stops_as_ctrl_c():
            return int(options.run(options))
    except UirlError as error:
        print(f"uirl: {visible(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("uirl: interrupted", file=sys.stderr)
        return INTERRUPTED


def _leave(status: int) -> NoReturn:
    """End the process without the interpreter's own end, which aborts where a thread still computes in torch."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the typed options. Changes to the config may stand before and behind options; argparse reads one place."""
    parser = command_parser()
    options, rest = parser.parse_known_args(arguments)
    changes = getattr(options, "overrides", None)
    if rest and (changes is None or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.overrides += rest
    return options


class _Parser(argparse.ArgumentParser):
    """Options are written out: an abbreviation would change its meaning with the next option that begins like it."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)


_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""How shtab has a shell complete names of files."""


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of `uirl`, from which shtab writes the completion of a shell."""
    parser = _Parser(prog="uirl", description="Reinforcement learning for agents that use things.")
    parser.add_argument("--version", action=_Version, help="show the version and exit")
    parser.set_defaults(run=lambda _: _help(parser))
    commands = parser.add_subparsers(metavar="command")
    begin.add_command(commands)
    compare.add_command(commands, main)
    train = commands.add_parser("train", help="train a policy as a config says")
    add_config(train)
    train.add_argument(
        "--resume", action="store_true", help="continue the newest run of this config, or logging.run_name=<name>"
    )
    train.add_argument(
        "--from-step", type=int, metavar="N", help="continue from the checkpoint of step N; later ones are set aside"
    )
    train.set_defaults(run=_train)
    evaluate = commands.add_parser("eval", help="measure a run or a checkpoint on other episodes")
    evaluate.add_argument(
        "path", nargs="?", metavar="RUN_OR_CHECKPOINT", help="run directory, checkpoint or HF model folder"
    )
    evaluate.add_argument("--checkpoint", metavar="PATH", help="the same, as an option")
    evaluate.add_argument("--tasks", metavar="FILE", help="JSON list of tasks; default: those of the environment")
    evaluate.add_argument("--episodes", type=count, default=256, help="episodes in all (default 256)")
    evaluate.add_argument("--tries", type=count, default=1, help="episodes per instance, for pass@k (default 1)")
    evaluate.add_argument("--temperature", type=float, help="sampling temperature; default: that of training")
    evaluate.add_argument("--json", metavar="FILE", dest="json_path", help="write the report there; '-': print it only")
    evaluate.add_argument(
        "--record", metavar="FILE", help="SQLite file for the episodes; default: a new one in the run directory"
    )
    evaluate.add_argument("overrides", nargs="*", metavar="section.key=value", help="changes to the run's config")
    evaluate.set_defaults(run=_eval)
    check = commands.add_parser("check", help="prove in seconds that a config can be trained")
    add_config(check)
    check.add_argument(
        "--record", metavar="PATH", help="instead: which faults a dump of TRL, verl or prime-rl shows, file or folder"
    )
    check.add_argument("--held-out", metavar="FILE", help="record: questions that training must not hold")
    check.set_defaults(run=_check)
    apps.add_command(commands)
    attack.add_command(commands)
    audit.add_command(commands)
    evolve.add_command(commands)
    export.add_command(commands)
    judge.add_command(commands)
    plan.add_command(commands)
    known = commands.add_parser("environments", help="list the environments that a config can name")
    known.add_argument(
        "name", nargs="?", help="print the options of this environment, or of your own package.module:Class"
    )
    known.set_defaults(run=_environments)
    serve.add_command(commands)
    serve_model.add_command(commands)
    verl.add_command(commands)
    view.add_command(commands)
    for command in commands.choices.values():
        for action in command._actions:
            if re.match("RUN|config|FILE|PATH|FOLDER", str(action.metavar)):
                action.complete = _FILES  # type: ignore[attr-defined]
    return parser


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 0


class _Version(argparse.Action):
    """Prints the version; looked up only then."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"uirl {version('uirl')}")
        except PackageNotFoundError:
            print("uirl, not installed (run from its folder)")
        parser.exit()


def _train(options: argparse.Namespace) -> int:
    with several_learners() as ranks:
        return 0 if ranks is not None and not ranks.leads else _lead(options, ranks)


def _lead(options: argparse.Namespace, ranks: Ranks | None) -> int:
    if options.from_step is not None:
        options.overrides.append(f"checkpoint.from_step={options.from_step}")
    if options.resume or options.from_step is not None:
        options.overrides.insert(0, "checkpoint.resume=true")
    if options.config is None and not options.overrides:
        raise ConfigError(
            f"expected a config: a file, or a name that `uirl configs` lists: {', '.join(begin.shipped())}"
        )
    path, config = read_config(options)
    if path is not None and Path(path).is_dir():
        if not config.checkpoint.resume:
            raise ConfigError(f"{path} is a run; continue it with --resume, or name a config file to begin another")
        config.logging.runs_dir, config.logging.run_name = str(Path(path).resolve().parent), Path(path).resolve().name
    from uirl.runtime.event_loop import ctrl_c_heard

    with ctrl_c_heard():
        from uirl.training import RayPPOTrainer
        from uirl.training.record.progress import live_board
        from uirl.training.resume import run_name_for

        if path is not None:
            config.logging.call_runs(Path(path).stem)
        if config.checkpoint.resume:
            config.logging.run_name = run_name_for(config)  # where there is none: before a model is loaded
        trainer = RayPPOTrainer(config, ranks=ranks)
    try:
        with live_board(f"{config.environment.label}  {config.training.adv_estimator}  {config.model.model_name}"):
            trainer.fit()
    except KeyboardInterrupt:
        print(f"uirl: interrupted; {_how_to_go_on(trainer)}", file=sys.stderr, flush=True)
        if trainer.busy:
            os._exit(INTERRUPTED)  # a second Ctrl-C: what still runs on other threads is not waited for
        return INTERRUPTED
    finally:
        trainer.cleanup()
    return 0


def _how_to_go_on(trainer: RayPPOTrainer) -> str:
    from uirl.learner import latest_checkpoint
    from uirl.training.resume import checkpoints_of

    if trainer.run_path is None:
        return "the run had not begun"
    config = trainer.config
    newest = latest_checkpoint(checkpoints_of(trainer.run_path, config.checkpoint.output_dir, config.logging))
    if newest is None:
        return "there is no checkpoint yet, --resume begins anew"
    run = shlex.quote(str(short(trainer.run_path)))
    ranks = trainer.learner.ranks
    command = "uirl" if ranks is None else f"torchrun --nproc-per-node {ranks.count} -m uirl"
    return f"`{command} train {run} --resume` continues from {short(newest)}"


def _eval(options: argparse.Namespace) -> int:
    from uirl.runtime.files import require_writable, write_atomically
    from uirl.training.evaluation.measure import free_record, measure
    from uirl.training.record.progress import lines_on_stderr, say
    from uirl.training.summary import warn_of_excluded

    words = [word for word in (options.checkpoint, options.path) if word is not None]
    if not words:
        raise UirlError("expected a run directory or a checkpoint, as in: uirl eval runs/screen")
    make_importable(opened=words[0])
    to_file = options.json_path not in (None, "-")
    if to_file:
        options.json_path = os.path.abspath(options.json_path)  # the environment may go to another folder
        require_writable(options.json_path)
    with lines_on_stderr(options.json_path == "-"):
        record = options.record or free_record(Path(words[0]))
        whole = options.episodes - options.episodes % max(1, options.tries)  # as many tries of every instance
        say(f"playing {whole} episodes of the split 'test'; they are stored in {record}")
        report = measure(
            words[0],
            tasks_path=options.tasks,
            episodes=options.episodes,
            tries=options.tries,
            temperature=options.temperature,
            overrides=words[1:] + options.overrides,
            record=record,
        )
        if options.json_path == "-":
            warn_of_excluded({"": report.tally})
    text = json.dumps(report.to_dict() | {"record": str(record)}, indent=2)
    if options.json_path == "-":
        print(text)
    else:
        _tell_report(words[0], report, record)
    if to_file:
        write_atomically(options.json_path, text + "\n")
    return 0


def _tell_report(what: str, report: EvaluationReport, record: str | Path) -> None:
    from uirl.training.record.progress import percent, report_table
    from uirl.training.summary import excluded_rows, warn_of_excluded

    rows: dict[str, object] = {
        "success": report.words(),
        **report.unseen_rows(),
        "reward": report.reward,
        **excluded_rows({"": report.tally}),
        **({"the first failure": report.first_failure} if report.failures else {}),
        "turns": report.turns,
        **{f"pass@{k}": percent(value) for k, value in report.pass_at_k.items() if k > 1},
        "trajectories": record,
    }
    report_table(what, rows)
    if report.members:
        report_table("per environment", {name: _task_line(row) for name, row in report.members.items()})
    report_table("per task", {name: _task_line(row) for name, row in report.tasks.items()})
    warn_of_excluded({"": report.tally})


def _task_line(row: dict[str, object]) -> str:
    from uirl.training.record.progress import percent

    judged = f"{row['judged']} of {row['episodes']} episodes judged"
    return f"{percent(row['success'])}  ({judged}, reward {row['reward']:.3f})"  # type: ignore[arg-type]


def _environments(options: argparse.Namespace) -> int:
    from uirl.environments import ENVIRONMENTS, environment_class

    if options.name is not None:
        return _options_of(options.name)
    width = max(map(len, ENVIRONMENTS))
    for name in sorted(ENVIRONMENTS):
        try:
            about = (environment_class(name).__doc__ or "").strip().partition("\n")[0]
        except ConfigError as error:
            about = f"not available here: {error}"
        print(f"{name:<{width}}  {about}")
    print(f"{'module:Class':<{width}}  your own, from a module beside the config, in this folder or in PYTHONPATH")
    return 0


def _options_of(name: str) -> int:
    """Print the options of an environment, with types, defaults and meaning, as wide as the terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    from uirl.config.reference import section_table
    from uirl.environments.options import ConfigurableEnvironment
    from uirl.environments.registry import environment_class, option_names

    kind = environment_class(name)
    if issubclass(kind, ConfigurableEnvironment):
        Console(highlight=False).print(Markdown(section_table(kind.options_class)))
    else:
        names = option_names(kind)
        print("any; it does not say which" if names is None else ", ".join(sorted(names)) or "none")
    return 0


def _check(options: argparse.Namespace) -> int:
    if options.record is not None:
        return _check_record(options)
    if options.held_out is not None:
        raise ConfigError("--held-out is compared with a dump; name it: --record PATH")
    _, config = read_config(options)
    from uirl.training.checks.preflight import Finding, preflight

    def tell(finding: Finding) -> None:
        print(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}: {finding.detail}", flush=True)

    findings = preflight(config, tell=tell)
    return 0 if all(finding.ok for finding in findings) else 1


def _check_record(options: argparse.Namespace) -> int:
    from uirl.storage.dump_faults import check_dump

    if options.config is not None or options.overrides:
        raise ConfigError("--record reads what another trainer wrote, without a config; leave the config out")
    report = check_dump(Path(options.record), Path(options.held_out) if options.held_out is not None else None)
    print(visible(str(report)))
    return 1 if report.shown else 0


if __name__ == "__main__":
    sys.exit(main())

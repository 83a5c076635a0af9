"""`uirl attack`: what an environment, and whoever judges it, accepts without the task being solved."""

from __future__ import annotations

import argparse
import json
from typing import Any

from uirl.cli.options import add_config, count, read_config
from uirl.runtime.terminal import visible


def add_command(commands: Any) -> None:
    """Add the command to the parser of `uirl`."""
    attack = commands.add_parser("attack", help="try what an environment accepts without its task being solved")
    add_config(attack)
    attack.add_argument("--episodes", type=count, default=30, help="of each attacker, at least (default 30)")
    attack.add_argument("--seed", type=int, default=0, help="other instances and other draws (default 0)")
    attack.add_argument("--only", action="append", default=[], metavar="ATTACKER", help="this one; may be repeated")
    attack.add_argument(
        "--chance", type=float, default=0.5, help="share that blind valid actions may solve by luck (default 0.5)"
    )
    attack.add_argument("--json", metavar="FILE", dest="json_path", help="write the report there; '-': print it only")
    attack.set_defaults(run=_attack)


def _attack(options: argparse.Namespace) -> int:
    from uirl.environments import ENVIRONMENTS, create_environment
    from uirl.runtime.files import write_atomically
    from uirl.training.attack import attack
    from uirl.training.record.progress import lines_on_stderr
    from uirl.training.tasks.task_sets import task_sets
    from uirl.verification.setup import verifier_of

    names = [word for word in options.overrides if word in ENVIRONMENTS or (":" in word and "=" not in word)]
    changes = [word for word in options.overrides if word not in names]
    options.overrides = [*(f"environment.name={name}" for name in names), *changes]
    _, config = read_config(options)
    settings = config.environment
    settings.require_named()
    environment = create_environment(settings.name, settings.options_for("train"), settings)
    verifier = verifier_of(config.verification, config.logging, "attack")
    with lines_on_stderr(options.json_path == "-"):
        report = attack(
            environment,
            tasks=task_sets(settings, environment, environment).train,
            reward_fn=verifier,
            episodes=options.episodes,
            seed=options.seed,
            chance=options.chance,
            turns=config.turn_limit,
            step_timeout=settings.timeouts[0],
            only=options.only,
        )
    text = json.dumps(report.to_dict(), indent=2)
    print(text if options.json_path == "-" else visible(str(report)))
    if options.json_path not in (None, "-"):
        write_atomically(options.json_path, text + "\n")
    return 1 if report.through else 0

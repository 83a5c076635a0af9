"""`uirl verl`: a run under verl, from a config in verl's terms; and what becomes of its checkpoints."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from uirl.cli.begin import path_of
from uirl.errors import ConfigError

if TYPE_CHECKING:
    from uirl.integrations.verl.trainer import CustomRayPPOTrainer


def add_command(commands: Any) -> None:
    """Add the command to the parser of `uirl`."""
    verl = commands.add_parser("verl", help="train under verl, on Ray")
    what = verl.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE", help="YAML in verl's terms, e.g. configs/verl_config.yaml")
    what.add_argument(
        "--export", metavar="PATH", help="write a checkpoint of verl's, or a run's newest, as a HF folder"
    )
    verl.add_argument(
        "--sft_model_path", metavar="PATH", help="the policy to start from: HF folder or id, run, checkpoint"
    )
    verl.add_argument(
        "--llm_base_url",
        metavar="URL",
        help="model that judges or plays the user (default: $UIRL_LLM_BASE_URL, or none)",
    )
    verl.add_argument(
        "--api_key", metavar="KEY", help="its key (default: $UIRL_LLM_API_KEY, where others cannot see it)"
    )
    verl.add_argument("--dry_run", action="store_true", help="print verl's whole config and stop")
    verl.add_argument("--plan", action="store_true", help="print what GPUs and hosts must hold and stop; 1: too much")
    verl.add_argument("--gpu_gib", type=float, default=80.0, metavar="N", help="memory of a GPU, for --plan (80)")
    verl.add_argument("--host_gib", type=float, metavar="N", help="memory of a node, for --plan (default: unknown)")
    verl.add_argument("--picture", default="1280x720", metavar="WxH", help="size of a screenshot, for --plan")
    verl.add_argument(
        "overrides", nargs="*", metavar="key=value", help="changes: verl's keys, uirl.section.key, curriculum.key"
    )
    verl.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    _check(options)
    if options.export is not None:
        return _export(options.export)
    options.config = path_of(options.config)
    if options.api_key is not None:
        _again_without_key(options)
    if options.llm_base_url is not None:
        from uirl.integrations.verl.settings import LLM_BASE_URL

        os.environ[LLM_BASE_URL] = options.llm_base_url
    return _train(options)


def _check(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that cannot be meant."""
    from uirl.integrations.verl.settings import LLM_BASE_URL

    if options.export is not None:
        also = [name for name in ("sft_model_path", "llm_base_url", "api_key") if getattr(options, name) is not None]
        if also or options.overrides or options.dry_run or options.plan:
            raise ConfigError("--export takes no other option")
        return
    url = options.llm_base_url if options.llm_base_url is not None else os.environ.get(LLM_BASE_URL)
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc):
        raise ConfigError("--llm_base_url is no address; expected one like https://api.openai.com/v1")
    if url and urlsplit(url).username is not None:
        raise ConfigError("--llm_base_url holds a user or a key, and addresses are printed; give it as --api_key")
    if options.api_key is not None and not url:
        raise ConfigError("--api_key without --llm_base_url: there is nobody to show it to")
    path = options.sft_model_path
    if path is not None and path.startswith(("/", ".", "~")) and not Path(path).expanduser().exists():
        raise ConfigError(f"--sft_model_path {path} does not exist; expected a HF folder or id, a run or a checkpoint")


def _train(options: argparse.Namespace) -> int:
    from uirl.integrations.verl.settings import create_curriculum, load_verl_config, read_verl_yaml

    # mistakes in the file are told before those of the installation
    read = read_verl_yaml(options.config, options.overrides)
    read.merged()
    curriculum = create_curriculum(read.curriculum)
    model = options.sft_model_path
    model = str(Path(model).expanduser()) if model is not None else None
    config, own, _ = load_verl_config(options.config, options.overrides, model_path=model)
    if config.trainer.resume_mode == "auto" and own.logging.run_name is None:
        raise ConfigError("trainer.resume_mode=auto continues a run by its name; add uirl.logging.run_name=<name>")
    from uirl.integrations.verl.trainer import HOOKS, create_trainer

    written = {key: read.flat[key] for key in HOOKS if key in read.flat}  # they win, as everything that a person writes
    use_v1 = bool(config.trainer.use_v1)
    trainer = create_trainer(config, curriculum=curriculum, use_v1=use_v1, overrides=written)
    if options.plan:
        return _plan(options, trainer)
    if options.dry_run:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(trainer.config), end="")
        return 0
    print(f"run directory   {trainer.directory}")
    trainer.fit()
    return 0


def _plan(options: argparse.Namespace, trainer: CustomRayPPOTrainer) -> int:
    """Print the memory plan; return 1 where the run does not fit."""
    from uirl.integrations.verl.models import described_model
    from uirl.integrations.verl.plan import plan_of
    from uirl.training.memory import shape_of_config

    size = re.fullmatch(r"(\d+)x(\d+)", options.picture)
    if size is None or options.gpu_gib <= 0 or (options.host_gib or 1) <= 0:
        raise ConfigError(
            f"--picture {options.picture} --gpu_gib {options.gpu_gib} --host_gib {options.host_gib}: expected a "
            "picture like 1280x720 and memory above 0"
        )
    picture, shape = (int(size[1]), int(size[2])), shape_of_config(described_model(trainer.source, trainer.store.model))
    plan = plan_of(trainer.config, shape, gpu_gib=options.gpu_gib, host_gib=options.host_gib, picture=picture)
    print(plan)
    return 1 if plan.problems else 0


def _export(path: str) -> int:
    from uirl.cli.export import export_policy

    print(export_policy(Path(path), "hf"))
    return 0


def _again_without_key(options: argparse.Namespace) -> NoReturn:
    """Start the command anew in the place of this process, with the key in its environment and not among its arguments,
    which Ray and trackers write down and `ps` shows. Never returns."""
    from uirl.integrations.verl.settings import LLM_API_KEY

    command = [sys.executable, "-m", "uirl", "verl", "--config", options.config]
    for name in ("sft_model_path", "llm_base_url"):
        if getattr(options, name) is not None:
            command += [f"--{name}", getattr(options, name)]
    command += ["--dry_run"] * options.dry_run
    if options.plan:
        command += ["--plan", f"--gpu_gib={options.gpu_gib}", f"--picture={options.picture}"]
        command += [f"--host_gib={options.host_gib}"] * (options.host_gib is not None)
    command += options.overrides
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, LLM_API_KEY: options.api_key})

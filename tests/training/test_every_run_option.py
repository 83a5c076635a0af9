"""No option of a run is accepted and then dies or does nothing.

Every key of the config that no update reads (those are in `test_every_option`) is given every other value that its
type allows, alone and beside what reads it. It is refused, or a whole small run goes through and something that can be
seen of it is different.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.config.test_every_key_is_read import leaves
from tests.training.options import alternatives, assignment, build, digest, value_of
from tests.training.test_every_option import OF_CREDIT, OF_OPTIMIZER
from uirl import ConfigStore, RayPPOTrainer, TrajectoryStore, read_metrics
from uirl.config import CurriculumConfig
from uirl.inference.models.loading import LoadedModel, load_model
from uirl.inference.registry import create_engine
from uirl.inference.sglang.backends import engine_arguments as sglang_arguments
from uirl.inference.vllm.arguments import engine_arguments as vllm_arguments
from uirl.inference.weight_files import WeightFiles
from uirl.rollout.collector import Collector
from uirl.rollout.episode import Agent, EpisodeSpec
from uirl.types import Trajectory

pytestmark = pytest.mark.slow

ELSEWHERE = {
    "actors.": "tests/training/test_flow.py, test_asynchrony.py, test_assembly_pictures.py and channels/, "
    "tests/workers/test_supervisor.py, tests/inference/workers and embedded/test_swap.py",
    "algorithm.step_": "tests/training/test_step_credit.py",
    "checkpoint.resume": "tests/training/test_loop.py resumes killed runs",
    "checkpoint.from_step": "tests/training/test_resume.py goes back",
    "checkpoint.save_seconds": "tests/training/test_resume.py waits by a clock of its own",
    "environment.tasks": "tests/training/tasks/test_task_sets.py",
    "environment.eval_tasks": "tests/training/tasks/test_task_sets.py",
    "environment.columns": "tests/training/tasks/test_rows.py",
    "environment.step_timeout": "seen in the plan below, tried in tests/environments/test_session.py",
    "evolve.": "tests/pipelines/test_evolve.py",
    "inference.sleep": "tests/training/test_sleep.py, tests/inference/vllm/test_sleep.py",
    "inference.backend": "the engines have suites of their own; 'scripted' is refused in tests/config",
    "logging.trackers": "tests/metrics/test_trackers.py; the package may be missing",
    "model.adapter_path": "tests/learner/test_adapter_folder.py",
    "model.quantization": "tests/learner/test_quantized.py; the package may be missing",
    "training.optimizer": "tests/learner/test_adamw_8bit.py; the package may be missing",
    "model.device": "one machine has one device",
    "model.local_path": "tests/cli loads folders",
    "ray.": "tests/training/channels/test_ray.py, tests/inference/workers",
    "verification.": "tests/verification/test_every_key.py",
}
"""How keys begin -> who tries them, where this file cannot."""

RUN = [
    "environment.name=guess_number",
    "environment.options={n: 4, guesses: 2, demonstrator: random}",
    "inference.max_tokens=4",
    *("training.batch_size=4", "training.minibatches=1", "training.num_epochs=1", "training.num_iters_per_epoch=2"),
    *("training.eval_every=null", "training.eval_episodes=2", "training.warm_start.enabled=false"),
    *("logging.trackers=[]", "logging.run_name=run", "checkpoint.save_interval=null"),
]
WARM = [
    "training.warm_start.enabled=true",
    *("training.warm_start.steps=2", "training.warm_start.batch_size=2", "training.warm_start.demonstrations=3"),
    *("training.warm_start.evaluate_every=1", "training.warm_start.evaluate_episodes=2"),
    *("training.warm_start.stop_at_success=1.0", "training.warm_start.warmup_steps=2"),
]
VLM = ["model.model_name=uirl/tiny-vlm"]
SCREEN = [*VLM, "environment.name=screen", "environment.options={}", "inference.max_tokens=2"]
LORA = ["model.use_lora=true", "training.learning_rate=0.01"]
SEVERAL_TASKS = [
    *("environment.name=tests.training.tasks.letters:Letters", "environment.options={}"),
    *("training.adv_estimator=grpo", "training.group_size=2", "training.batch_size=8"),
    "training.num_iters_per_epoch=24",
]
CURRICULUM = [
    *(*SEVERAL_TASKS, "curriculum.enabled=true", "curriculum.min_attempts_per_task=2", "curriculum.schedule_start=0.0"),
    *("curriculum.half_life=6.0", "curriculum.oversampling=2.0"),
]
CHECKPOINTS = ["checkpoint.save_interval=1", "checkpoint.keep_last_n=2", "training.num_epochs=3"]
READERS: dict[str, list[str]] = {
    "algorithm.max_resamples": ["training.adv_estimator=grpo", "training.group_size=2"],
    "checkpoint.keep_best": ["training.eval_every=1"],
    "checkpoint.keep_last_n": [*CHECKPOINTS, "training.num_iters_per_epoch=1"],
    "checkpoint.save_interval": ["training.num_epochs=2", "training.num_iters_per_epoch=1"],
    **dict.fromkeys((f"curriculum.{name}" for name in CurriculumConfig.model_fields), CURRICULUM),
    "curriculum.enabled": SEVERAL_TASKS,
    "environment.name": ["environment.options={}", "inference.max_turns=2"],
    "inference.max_turns": ["environment.options={n: 40, guesses: 9}", "inference.max_turns=4"],
    "logging.print_every": ["training.num_iters_per_epoch=3"],
    "logging.store_images": SCREEN,
    "model.freeze_vision": VLM,
    "model.max_image_pixels": SCREEN,
    "model.picture_cache_gib": SCREEN,
    "model.lora.vision": [*LORA, *VLM],
    "rollout.max_images": SCREEN,
    "rollout.keep_images": [*SCREEN, "rollout.max_images=2"],
    "training.padding_free": [
        *(*WARM, "training.warm_start.batch_size=16", "training.warm_start.demonstrations=16"),
        *("training.share_prompts=false", "environment.options={n: 40, guesses: 9, demonstrator: random}"),
    ],
    "training.stop_at_success": ["training.eval_every=1"],
    "training.eval_every": ["training.num_iters_per_epoch=2"],
    **dict.fromkeys((f"model.lora.{name}" for name in ("r", "lora_alpha", "lora_dropout", "target")), LORA),
    **dict.fromkeys((key for key in leaves(ConfigStore) if key.startswith("training.warm_start.")), WARM),
    **dict.fromkeys((f"model.tiny.{name}" for name in ("architecture", "vision_hidden_size", "vision_layers")), VLM),
    **dict.fromkeys((f"model.tiny.{name}" for name in ("patch_size", "merge_size", "image_size")), SCREEN),
}
"""Key -> what must be set for it to be read. It is tried beside it alone; without it, it is documented as not read."""
VALUES: dict[str, list[Any]] = {
    "checkpoint.output_dir": ["kept"],
    "curriculum.final_distribution": [{"frontier": 1.0}],
    "curriculum.initial_distribution": [{"exploitation": 1.0}],
    "curriculum.schedule_start": [0.5],
    "curriculum.min_attempts_per_task": [6],
    "logging.runs_dir": ["elsewhere"],
    "logging.project": ["mine"],
    "model.tiny.vocab_size": [300],
    "model.tiny.words": [["zebra"]],
}
"""Values of keys whose type alone does not say one."""
OF_ENGINES = {
    "model.tensor_parallel_size": ["vllm", "sglang"],
    "model.trust_remote_code": ["vllm", "sglang"],
    "inference.engine_options": ["vllm", "sglang"],
    "inference.server_model": ["openai"],
    "inference.server_url": ["openai"],
    "inference.api_key_env": ["openai"],
    "inference.request_timeout": ["openai"],
    "inference.request_retries": ["openai"],
    "inference.max_context": ["openai", "vllm", "sglang"],
    "inference.kv_cache_gib": ["vllm"],
    "inference.max_batch_size": ["vllm", "sglang"],
    "inference.kv_cache": ["vllm", "sglang"],
    "model.dtype": ["vllm", "sglang"],
    "model.lora.r": ["vllm", "sglang"],
}
"""Key -> backends that read it, beside or instead of the embedded one."""
FOR_VERL = {"ray.nnodes", "ray.gpus_per_node"}
ONLY_REFUSED = {"inference.weights_dir", "model.attn_implementation", "logging.project", *FOR_VERL}
"""Keys that this machine can only see refused: another engine, a real checkpoint, a tracker or verl reads them."""


class Runs:
    """Whole runs, and what can be seen of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: dict[tuple[str, ...], Any] = {}
        self.played: list[str] = []
        """The episodes that a collector played, those that no record keeps too."""

    def outcome(self, *assignments: str) -> Any:
        """What can be seen of a run; None: refused."""
        if assignments not in self.seen:
            config, _ = build(*RUN, *assignments)
            self.seen[assignments] = None if config is None else self._run(config, self.folder / str(len(self.seen)))
        return self.seen[assignments]

    def _run(self, config: ConfigStore, folder: Path) -> dict[str, Any]:
        runs = config.logging.runs_dir
        config.logging.runs_dir = str(folder / runs)
        if config.checkpoint.output_dir is not None:
            config.checkpoint.output_dir = str(folder / config.checkpoint.output_dir)
        said = io.StringIO()
        self.played.clear()
        threads = torch.get_num_threads()
        with contextlib.redirect_stdout(said):
            trainer = RayPPOTrainer(config, reward_fn=worth)
            try:
                plan = plan_of(trainer)
                summary = trainer.fit()
            finally:
                trainer.cleanup()
                torch.set_num_threads(threads)
        run = trainer.run_path
        assert run is not None
        return {
            "plan": plan,
            "metrics": [without_clocks(row) for row in read_metrics(run / "metrics.jsonl")],
            "summary": without_clocks(summary) | {"warm_start": without_clocks(summary["warm_start"] or {})},
            "files": sorted(files_of(folder)),
            "played": sorted(self.played),
            "episodes": episodes_of(run / "trajectories.sqlite"),
            "weights": digest(trainer.learner.policy),
            "lines": len(re.findall(r"^(?:step|warm start) ", said.getvalue(), re.M)),
        }


def worth(trajectory: Trajectory) -> float:
    """A reward that differs between episodes of a policy that never learned anything."""
    return float(sum(len(turn.response_ids) + turn.response_ids[0] for turn in trajectory.turns) % 5)


def files_of(folder: Path) -> Iterator[tuple[str, int]]:
    """(name, size where it follows from what is kept)."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(folder)), path.stat().st_size if path.suffix == ".safetensors" else 0


def without_clocks(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not re.search(r"time|seconds|per_second|^limit/", k)}


def episodes_of(path: Path) -> Any:
    if not path.exists():
        return None
    with contextlib.closing(TrajectoryStore(path, read_only=True)) as store:
        played = [(t.id, t.seed, t.stop_reason, [(u.observation, u.context_ids, u.response_ids) for u in t.turns],
                   sorted(store.learned(t.id)))
                  for t in store]  # fmt: skip
    return sorted(played, key=lambda one: one[0])


def plan_of(trainer: RayPPOTrainer) -> dict[str, Any]:
    """What bounds a run that is too small to be bounded."""
    parts, model = trainer._parts, trainer.learner.policy.model
    collector, engine, vision = parts.collector, parts.engine, trainer.learner.policy.loaded.vision
    names = ("parallel", "retries", "step_timeout", "reset_timeout")
    return {name: getattr(collector, name) for name in names} | {
        "limits": collector.options.limits,
        "window": collector.options.window,
        # without the key it is what is free on the machine, which changes while the tests run
        "engine": engine.limits if parts.config.inference.kv_cache_gib else replace(engine.limits, max_cached_tokens=0),
        "pictures": vision and vision.cache.kept.max_bytes,
        "threads": torch.get_num_threads(),
        "recomputes": model.is_gradient_checkpointing,
        "trained": sum(p.numel() for _, p in trainer.learner.policy.named_trainable()),
        "model": (sum(p.numel() for p in model.parameters()), type(model).__name__),
    }


OF_BOTH = {
    *("inference.max_batch_size", "inference.kv_cache", "inference.max_context", "model.dtype", "model.lora.r"),
    "inference.kv_cache_gib",
}
OF_OTHERS = {key for key in leaves(ConfigStore) if key.startswith(tuple(ELSEWHERE))} - FOR_VERL
OF_RUNS = sorted({*leaves(ConfigStore)} - {*OF_CREDIT, *OF_OPTIMIZER} - OF_OTHERS - (OF_ENGINES.keys() - OF_BOTH))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uirl.training.record.record.draw_curve", lambda path, *args, **options: path.write_bytes(b""))
        made, play_once = Runs(tmp_path_factory.mktemp("runs")), Collector.play_once

        async def noted(self: Collector, spec: EpisodeSpec, agent: Agent) -> Trajectory:
            made.played.append(spec.trajectory_id)
            return await play_once(self, spec, agent)

        patch.setattr(Collector, "play_once", noted)
        yield made


@pytest.mark.parametrize("key", OF_RUNS)
def test_what_a_run_reads_changes_it_or_is_refused(runs: Runs, key: str) -> None:
    beside = READERS.get(key, [])
    config, why = build(*RUN, *beside)
    assert config is not None, why
    before = runs.outcome(*beside)
    worked = False
    for value in VALUES.get(key) or alternatives(key, value_of(config, key)):
        after = runs.outcome(*beside, assignment(key, value))
        worked |= after is not None
        assert after is None or after != before, f"{assignment(key, value)} does nothing"
    assert worked == (key not in ONLY_REFUSED)


@pytest.fixture(scope="module")
def text_model() -> LoadedModel:
    config, _ = build()
    assert config is not None
    return load_model(config.model)


def arguments_of(backend: str, loaded: LoadedModel, *assignments: str) -> Any:
    """What an engine would be started or asked with."""
    config, why = build(
        f"inference.backend={backend}", "model.model_name=some/model", "inference.max_tokens=4", *assignments
    )
    assert config is not None, why
    if backend == "vllm":
        return vllm_arguments(config.model, config.inference)
    if backend == "sglang":
        arguments = sglang_arguments(config.engine_settings, loaded, WeightFiles(None), config.model.use_lora)
        return arguments | {"model_path": ""} | config.inference.engine_options
    engine: Any = create_engine(config, loaded)
    client = engine._client
    asked = (client.base_url, client.key_env, client.timeout, client.retries)
    return asked, engine._server._named_model, engine._max_context


@pytest.mark.parametrize(("key", "backend"), [(key, backend) for key, own in OF_ENGINES.items() for backend in own])
def test_what_an_engine_reads_reaches_it(text_model: LoadedModel, key: str, backend: str) -> None:
    beside = LORA if key.startswith("model.lora") else []
    before = arguments_of(backend, text_model, *beside)
    values = [v for v in alternatives(key, value_of(ConfigStore(), key)) if v != "float16"]
    for value in values:
        assert arguments_of(backend, text_model, *beside, assignment(key, value)) != before, value

"""verl's legacy trainer behind the same interface, as long as verl has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn

from uirl.errors import ConfigError
from uirl.integrations.verl.mapping import ESTIMATORS
from uirl.integrations.verl.placement import roles_of
from uirl.integrations.verl.record import StepRecord, continue_record, find_coordinator, write_state
from uirl.integrations.verl.settings import Settings
from uirl.integrations.verl.task_runner import close_environments
from uirl.integrations.verl.update import tell_threshold
from uirl.integrations.verl.v1 import all_failed, report


class LegacyTrainer(RayPPOTrainer):
    """`RayPPOTrainer` that keeps our record and the curriculum's state.

    An episode that failed is a masked row there. Its score is set to the mean of the rest of its group, so that it
    moves no baseline; the deviation GRPO divides by is then that of the whole group.
    """

    async_rollout_manager: Any
    record: StepRecord | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._settings = Settings.read(self.config.data)
        self._coordinator = find_coordinator(str(self._settings.coordinator))

    def init_workers(self) -> None:
        super().init_workers()
        generate = self.async_rollout_manager.generate_sequences

        def generate_and_record(prompts: Any) -> Any:
            batch = generate(prompts)
            if not prompts.meta_info.get("validate", False):
                self._record_step(batch)
            return batch

        self.async_rollout_manager.generate_sequences = generate_and_record

    def _record_step(self, batch: Any) -> None:
        """Record the episodes of a step, of which verl made `batch`."""
        played = ray.get(self._coordinator.take.remote())
        failures = [t.failure for t in played.episodes if t.failure is not None]
        if failures and len(failures) == len(played.episodes):
            raise all_failed([f"{failure.kind}: {failure.message}" for failure in failures], self.global_steps)
        level_failed_scores(batch)
        of_tasks = report(self.train_dataset, played.episodes, self.global_steps)
        if self.record is not None:
            self.record.count(played)
            epoch = (self.global_steps - 1) // max(1, len(self.train_dataloader))
            self.record.add(self.global_steps, epoch, played, {}, of_tasks)
            ray.get(self._coordinator.take_held_out.remote())  # verl's own trackers have their numbers

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        write_state(folder, self.train_dataset, self.record)

    def _load_checkpoint(self) -> Any:
        loaded = super()._load_checkpoint()
        self.record = continue_record(self, self._settings, self._coordinator)
        return loaded


def level_failed_scores(batch: Any) -> None:
    """Give rows of failed episodes the mean score of the rest of their group, 0 where all failed."""
    outcomes = batch.non_tensor_batch["uirl"]
    groups = np.array([outcome["group"] for outcome in outcomes], dtype=object)
    failed = np.array([outcome["failure"] is not None for outcome in outcomes])
    scores = batch.batch["rm_scores"]
    totals = scores.sum(-1)
    for row in np.flatnonzero(failed):
        others = torch.from_numpy((groups == groups[row]) & ~failed)
        scores[row] = 0.0
        if others.any():
            scores[row, 0] = totals[others].mean()


def run_legacy(config: Any) -> None:
    """Train with verl's legacy trainer until it has come to its end."""
    if config.algorithm.adv_estimator == ESTIMATORS["turn_level"]:
        raise ConfigError(
            f"algorithm.adv_estimator={ESTIMATORS['turn_level']} needs rewards per turn; verl's legacy trainer puts "
            "the whole score on the last token. Use trainer.use_v1=true"
        )
    tell_threshold(config, Settings.read(config.data).store().algorithm.reward_threshold)
    roles, manager = roles_of(config).for_ray()
    if not config.reward.reward_model.enable_resource_pool:  # its loop counts the nodes of the pool it is in
        config.reward.reward_model.nnodes = config.trainer.nnodes
        config.reward.reward_model.n_gpus_per_node = config.trainer.n_gpus_per_node
    model, data = omega_conf_to_dataclass(config.actor_rollout_ref.model), config.data

    def rows(files: Any, name: str) -> Any:
        limit = data.get(f"{name}_max_samples", -1)
        return create_rl_dataset(
            files, data, model.tokenizer, model.processor, is_train=name == "train", max_samples=limit
        )

    train = rows(data.train_files, "train")
    trainer = LegacyTrainer(
        config=config,
        tokenizer=model.tokenizer,
        processor=model.processor,
        role_worker_mapping=roles,
        resource_pool_manager=manager,
        ray_worker_group_cls=RayWorkerGroup,
        train_dataset=train,
        val_dataset=rows(data.val_files, "val"),
        collate_fn=collate_fn,
        train_sampler=torch.utils.data.SequentialSampler(train),
    )
    trainer.init_workers()
    try:
        trainer.fit()
        if trainer.record is not None:
            trainer.record.finish()
    finally:
        close_environments(trainer.async_rollout_manager)

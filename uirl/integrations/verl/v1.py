"""verl's trainers with what a run of ours needs: the curriculum's state, our record, groups that are no evidence."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.utils import create_rl_dataset
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.dataset.rl_dataset import collate_fn
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance

from uirl.errors import ConfigError, RolloutFailure
from uirl.integrations.verl.mapping import ESTIMATORS
from uirl.integrations.verl.placement import CREDITING, roles_of
from uirl.integrations.verl.record import (
    EndedEpisodes,
    StepRecord,
    check_world_size,
    continue_record,
    find_coordinator,
    start_coordinator,
    write_state,
)
from uirl.integrations.verl.settings import Settings
from uirl.integrations.verl.update import (
    Division,
    Row,
    Sized,
    credit_episodes,
    divide,
    episode_of,
    minibatches,
    register_estimators,
    rows_at_once,
    tell_threshold,
)
from uirl.integrations.verl.workers import Watch, close_environments, lost
from uirl.types import Trajectory

WITHIN_GROUP = (
    "grpo",
    "grpo_vectorized",
    "grpo_passk",
    "rloo",
    "rloo_vectorized",
    "opo",
    "reinforce_plus_plus_baseline",
    "uirl_turn_level",
)
"""`algorithm.adv_estimator`s whose baseline is the rest of the group."""

register_estimators()


class StateCallback(CheckpointCallback):
    """Writes what is ours beside verl's shards; `trainer.checkpoint_callback_class` names it."""

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, async_save: bool = False, **_: Any) -> None:
        write_state(Path(checkpoint_dir), trainer.train_dataset, getattr(trainer, "record", None))


@register_trainer(CREDITING)
class EnvironmentPPOTrainer(PPOTrainerSync):
    """verl's synchronous trainer, which also

    - tells the dataset's curriculum how the episodes of a step went, before the step's checkpoint is written,
    - saves and restores the dataset's state (`StateCallback`),
    - drops the lone survivor of a group whose other members failed: its advantage would be its bare reward,
    - gives credit to episodes where a rewritten history made them several sequences,
    - takes as many optimiser steps as `training.minibatches` says, with all sequences of an episode in the same one,
    - says why where every episode of a step failed,
    - finishes and saves the step in which a rollout server died, and ends then,
    - writes the numbers of the episodes into verl's metrics and into our `metrics.jsonl`.
    """

    actor_rollout_wg: Any
    critic_wg: Any
    record: StepRecord
    """Opened where verl loads a checkpoint, or would."""

    def __init__(self, config: Any) -> None:
        settings = Settings.read(config.data)
        if settings.coordinator is None:
            settings.coordinator, _ = start_coordinator(settings.config, settings.directory)
        settings.credits_episodes = True
        settings.write(config)
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # the base classes compare this name
        tell_threshold(config, settings.store().algorithm.reward_threshold)
        self._settings = settings
        self._coordinator = find_coordinator(settings.coordinator)
        self._played = EndedEpisodes()
        self._of_tasks: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        self._dead_servers: dict[str, Exception] = {}
        self._saved: int | None = None
        self._batch: Any = None  # that is being divided
        self._division = Division([], 0)
        self._blocks: list[list[str]] = []
        """Keys of the rows of each."""
        self._ranks = {"actor": 1}
        """Network -> copies of it, each of which gets a stretch of the rows."""
        self._minibatches: dict[str, int] = {}
        super().__init__(config)

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = self._settings.poll_seconds
        return buffer

    def _load_checkpoint(self) -> None:
        check_world_size(self.config.trainer)
        super()._load_checkpoint()
        self.record = continue_record(self, self._settings, self._coordinator)

    def on_validate_end(self) -> None:
        super().on_validate_end()
        self.record.count_held_out(ray.get(self._coordinator.take_held_out.remote()))
        if self.global_steps == 0:
            self.record.add_start()

    def on_train_begin(self) -> None:
        super().on_train_begin()
        self.record.held_out_row = {}  # of the start, or once more of the step before a resume

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> Any:
        self._metrics = metrics
        batch = super().step(metrics, timing_raw)
        self._played = ray.get(self._coordinator.take.remote())
        self.record.count(self._played)
        self._of_tasks = report(self.train_dataset, self._played.episodes, self.global_steps)
        return batch

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> Any:
        try:
            return super()._step_once(metrics, timing_raw, sample_batch_size)
        except RuntimeError as error:
            reasons = ray.get(self._coordinator.failures.remote())
            if "no materializable trajectories" not in str(error) or not reasons:
                raise
            raise all_failed(reasons, self.global_steps) from error

    def on_sample_end(self) -> None:
        """Leave out dead servers: verl would end here, with a step that has been played and not learned from."""
        replicas = {f"rollout server {i}": one for i, one in enumerate(self.checkpoint_manager.replicas)}
        watch = Watch({f"{name}.{i}": s for name, one in replicas.items() for i, s in enumerate(one.servers)})
        for name, error in watch.dead(seconds=60.0).items():
            self._dead_servers[name.partition(".")[0]] = error
        self.checkpoint_manager.remove_replicas([one for name, one in replicas.items() if name in self._dead_servers])
        super().on_sample_end()

    def on_step_end(self) -> None:
        """Save the step and raise ProcessLost where a server died in it: weights could no longer reach the server."""
        if not self._dead_servers:
            super().on_step_end()
            return
        if self._saved != self.global_steps:
            self._save_checkpoint()
        epoch = (self.global_steps - 1) // self.steps_per_epoch
        self.record.add(self.global_steps, epoch, self._played, self._metrics, self._of_tasks)
        name, error = next(iter(self._dead_servers.items()))
        raise lost(f"{name} died in step {self.global_steps}, which was finished and saved", error)

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        self._saved = self.global_steps

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **options: Any) -> Any:
        if str(self.config.algorithm.adv_estimator) in WITHIN_GROUP:
            batch = self._without_lone_members(batch, metrics)
        metrics["training/learned_episodes"] = len({episode_of(key) for key in batch.keys})
        keys, self._batch = list(batch.keys), batch
        batch = super()._balance_batch(batch, metrics, **options)
        padding = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_padding", False)]
        metrics["training/padding_rows"] = len(padding)
        learns = self.global_steps >= self.config.trainer.critic_warmup  # before, the critic alone is trained
        epochs = int(self.config.actor_rollout_ref.actor.ppo_epochs)
        metrics["training/optimizer_steps"] = self._minibatches["actor"] * epochs if learns else 0
        rows = [*keys, *padding]
        self._blocks = [[rows[i] for i in block] for block in self._division.blocks]
        self._place(batch, "actor", metrics, options.get("logging_prefix", "global_seqlen"))
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Return the number of rows that the current batch must have; verl asks before it pads it."""
        episodes = [episode_of(key) for key in self._batch.keys]
        self._minibatches = minibatches(self.config, len(set(episodes)), critic=self.use_critic)
        self._ranks = {"actor": dp_size} | ({"critic": copies(self.critic_wg)} if self.use_critic else {})
        ranks = math.lcm(*self._ranks.values())
        self._division = divide(
            episodes,
            [tag["seq_len"] for tag in self._batch.tags],
            blocks=math.lcm(*self._minibatches.values()),
            multiple=rows_at_once(
                self.config, ranks=ranks, critic=self.use_critic, reference=self.use_reference_policy
            ),
        )
        return self._division.padded

    def _place(self, batch: Any, network: str, metrics: dict[str, Any], prefix: str) -> None:
        """Order the rows so that verl, which gives each rank a stretch and cuts it into mini-batches, cuts between the
        blocks; within a block ranks get equal work."""
        at = {key: i for i, key in enumerate(batch.keys)}
        tokens = torch.tensor([tag["seq_len"] for tag in batch.tags], dtype=torch.int64)
        ranks: list[list[int]] = [[] for _ in range(self._ranks[network])]
        for block in ([at[key] for key in keys] for keys in self._blocks):
            shares = get_seqlen_balanced_partitions(
                calculate_workload(tokens[block]), k_partitions=len(ranks), equal_size=True
            )
            for rank, share in zip(ranks, shares, strict=True):
                rank += [block[i] for i in share]
        metrics.update(log_seqlen_unbalance(tokens.tolist(), ranks, prefix=prefix))
        batch.reorder([i for rank in ranks for i in rank])

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        group, sizes = self.critic_wg, self._division.sizes(self._minibatches["critic"])
        self.critic_wg = Sized(group, sizes)
        elsewhere = self._ranks["critic"] != self._ranks["actor"]
        if elsewhere:
            self._place(batch, "critic", metrics, "critic_seqlen")
        try:
            batch = super()._update_critic(batch, metrics)
        finally:
            self.critic_wg = group
        if elsewhere:
            self._place(batch, "actor", metrics, "global_seqlen")
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        group, sizes = self.actor_rollout_wg, self._division.sizes(self._minibatches["actor"])
        self.actor_rollout_wg = Sized(group, sizes)
        try:
            return super()._update_actor(batch, metrics)
        finally:
            self.actor_rollout_wg = group

    def _without_lone_members(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Return the batch without episodes that have no other episode of their group left to be compared with."""
        members = Counter(group for group, _ in {episode_of(key) for key in batch.keys})
        keep = [key for key in batch.keys if members[episode_of(key)[0]] > 1]
        lone = [key for key in batch.keys if members[episode_of(key)[0]] == 1]
        metrics["training/lone_members_dropped"] = len({episode_of(key) for key in lone})
        if not lone:
            return batch
        if not keep:
            raise all_failed(ray.get(self._coordinator.failures.remote()), self.global_steps)
        tq.kv_clear(keys=lone, partition_id=batch.partition_id)
        return batch.select_keys(keep)

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_old_log_prob(batch, metrics)
        if self.config.actor_rollout_ref.rollout.calculate_log_probs:
            fields = ["old_log_probs", "rollout_log_probs", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            gap = (data["old_log_probs"].values() - data["rollout_log_probs"].values()).abs()
            gap = gap[data["response_mask"].values() > 0]
            metrics["training/log_prob_gap_max"] = gap.max().item()
            metrics["training/log_prob_gap_mean"] = gap.mean().item()
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        rewritten = len({episode_of(key) for key in batch.keys}) < len(batch.keys)
        if rewritten and str(self.config.algorithm.adv_estimator) in ESTIMATORS.values():
            self._credit_episodes(batch)
        return batch

    def _credit_episodes(self, batch: Any) -> None:
        """Write the credit of whole episodes into the queue, over that of their sequences."""
        algorithm = self.config.algorithm
        fields = ["loss_mask", "response_mask", "extra_fields", "rm_scores"]
        fields += ["token_level_rewards"] * algorithm.use_kl_in_reward + ["values"] * self.use_critic
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        paid = [extra["turn_scores"] for extra in data.pop("extra_fields").tolist()]
        # verl's rollout correction may have emptied `response_mask`, off which turns could not be read any more
        parts = {name: data[name].unbind() for name in fields if name != "extra_fields"}
        rows = [
            Row(
                key,
                parts["loss_mask"][i],
                paid[i],
                penalty=parts["token_level_rewards"][i] - parts["rm_scores"][i] if algorithm.use_kl_in_reward else None,
                values=parts["values"][i] if self.use_critic else None,
            )
            for i, key in enumerate(batch.keys)
        ]
        credit = {
            name: torch.nested.as_nested_tensor(
                [one * mask for one, mask in zip(found, parts["response_mask"], strict=True)], layout=torch.jagged
            )
            for name, found in zip(("advantages", "returns"), credit_episodes(rows, algorithm), strict=True)
        }
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(credit, len(rows)))

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], timing_raw: Any, **where: Any) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **where)
        metrics.update(self.record.add(self.global_steps, where["epoch"], self._played, metrics, self._of_tasks))


def report(dataset: Any, played: list[Trajectory], step: int) -> dict[str, Any]:
    """Tell a dataset how the episodes of update `step` went, and return what it says of its tasks."""
    if not hasattr(dataset, "report"):
        return {}
    dataset.report(played, step)
    return dict(dataset.take_metrics()) if hasattr(dataset, "take_metrics") else {}


def copies(group: Any, mesh: str = "train") -> int:
    """Return how many copies of its model a worker group of verl's holds: its ranks of data parallel."""
    if mesh not in group._dispatch_info:
        group._dispatch_info[mesh] = group._query_dispatch_info(mesh)
    return int(max(group._dispatch_info[mesh])) + 1


def all_failed(reasons: list[str], step: int) -> RolloutFailure:
    """Return the error of a step without evidence."""
    return RolloutFailure(
        f"step {step}: none of its groups can be learned from; {len(reasons)} episodes failed. The first, "
        f"{reasons[0] if reasons else 'of unknown reason'}"
    )


class LegacyTrainer(RayPPOTrainer):
    """verl's legacy trainer behind the same interface, as long as verl has it, with our record and the
    curriculum's state.

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

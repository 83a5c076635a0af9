"""What we rely on in verl, by name and signature, and signs of life of a run's processes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from uirl.errors import ConfigError, ProcessLost
from uirl.integrations.verl.task_runner import refuse_trl, watch_over
from uirl.integrations.verl.workers import Watch, actors_of

pytestmark = pytest.mark.verl


SIGNATURES = """
verl.experimental.agent_loop.agent_loop:AgentLoopBase.run self sampling_params kwargs
verl.experimental.agent_loop.agent_loop:AgentLoopBase.__init__ self trainer_config server_manager tokenizer
    processor dataset_cls data_config hf_model_type kwargs
verl.experimental.agent_loop.agent_loop:register agent_name
verl.experimental.agent_loop.agent_loop:AgentLoopOutput.as_dict self
verl.experimental.agent_loop.agent_loop:AgentLoopManager.create args kwargs
verl.workers.rollout.llm_server:LLMServerClient.generate self request_id prompt_ids sampling_params image_data
    video_data audio_data mm_processor_kwargs kwargs
verl.workers.rollout.llm_server:LLMServerClient._acquire_server self request_id extra
verl.workers.rollout.router:GlobalRequestLoadBalancer.remove_servers self server_ids
verl.checkpoint_engine.base:CheckpointEngineManager.remove_replicas self replicas
verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ.create args kwargs
verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll self partition_id last_debug_time
verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample self global_steps partition_id batch_size
verl.trainer.ppo.v1.trainer_base:PPOTrainer.on_sample_end self
verl.trainer.ppo.v1.trainer_base:PPOTrainer.on_step_end self
verl.trainer.ppo.v1.trainer_base:PPOTrainer._save_checkpoint self
verl.models.transformers.qwen2_vl:_get_input_embeds model input_ids attention_mask pixel_values
    pixel_values_videos image_grid_thw video_grid_thw
verl.models.transformers.qwen2_vl:unpack_visual_output visual_output
verl.trainer.main_ppo:run_ppo config task_runner_class
verl.trainer.ppo.v1:get_trainer_cls name
verl.trainer.ppo.v1.trainer_base:register_trainer name
verl.trainer.ppo.v1.trainer_base:PPOTrainer.__init__ self config
verl.trainer.ppo.v1.trainer_base:PPOTrainer.init self
verl.trainer.ppo.v1.trainer_base:PPOTrainer.fit self agent_loop_manager
verl.trainer.ppo.v1.trainer_base:PPOTrainer.step self metrics timing_raw
verl.trainer.ppo.v1.trainer_base:PPOTrainer._step_once self metrics timing_raw sample_batch_size
verl.trainer.ppo.v1.trainer_base:PPOTrainer._build_replay_buffer self
verl.trainer.ppo.v1.trainer_base:PPOTrainer._load_checkpoint self
verl.trainer.ppo.v1.trainer_base:PPOTrainer._balance_batch self batch metrics logging_prefix keep_minibatch
verl.trainer.ppo.v1.trainer_base:PPOTrainer._get_required_batch_multiple self dp_size
verl.trainer.ppo.v1.trainer_base:PPOTrainer._update_actor self batch metrics
verl.trainer.ppo.v1.trainer_base:PPOTrainer._update_critic self batch metrics
verl.utils.seqlen_balancing:calculate_workload seqlen_list
verl.utils.seqlen_balancing:get_seqlen_balanced_partitions seqlen_list k_partitions equal_size
verl.utils.seqlen_balancing:log_seqlen_unbalance seqlen_list partitions prefix
verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_old_log_prob self batch metrics
verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_advantage self batch metrics
verl.trainer.ppo.v1.trainer_base:PPOTrainer._compute_metrics self batch metrics timing_raw global_steps epoch
verl.trainer.ppo.v1.trainer_base:PPOTrainer.on_validate_end self
verl.trainer.ppo.v1.trainer_base:PPOTrainer.on_train_begin self
verl.trainer.ppo.v1.trainer_base:PPOTrainer.get_llm_client self
verl.trainer.ppo.v1.trainer_base:PPOTrainer.get_teacher_client self
verl.trainer.ppo.v1.trainer_base:PPOTrainer.get_reward_handles self
verl.trainer.ppo.core_algos:register_adv_est name_or_enum
verl.trainer.ppo.core_algos:get_policy_loss_fn name
verl.trainer.ppo.checkpoint_callback:CheckpointCallback.on_save self trainer global_step checkpoint_dir async_save
    kwargs
verl.trainer.ppo.utils:create_rl_dataset data_paths data_config tokenizer processor is_train max_samples
verl.trainer.ppo.ray_trainer:RayPPOTrainer.__init__ self config tokenizer role_worker_mapping
    resource_pool_manager ray_worker_group_cls processor train_dataset val_dataset collate_fn train_sampler
    device_name
verl.trainer.ppo.ray_trainer:RayPPOTrainer.init_workers self
verl.trainer.ppo.ray_trainer:RayPPOTrainer._save_checkpoint self
verl.trainer.ppo.ray_trainer:RayPPOTrainer._load_checkpoint self
verl.workers.engine.base:EngineRegistry.register model_type backend device vendor
verl.workers.rollout.replica:RolloutReplicaRegistry.register name loader
verl.workers.rollout.replica:RolloutReplica.launch_servers self
verl.workers.rollout.base:BaseRollout.update_weights self weights wire_format kwargs
verl.plugin.platform:PlatformRegistry.register platform
verl.utils.tokenizer:hf_processor name_or_path kwargs
verl.utils.import_utils:load_class_from_fqn fqn description
"""
"""'module:name' and its parameters, as of verl 0.9.1; a line that is indented goes on."""
EXPECTED = {line.split()[0]: tuple(line.split()[1:]) for line in SIGNATURES.replace("\n    ", " ").split("\n") if line}


def find(where: str) -> Any:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("where", EXPECTED)
def test_what_we_call_and_override_is_where_it_was(where: str) -> None:
    try:
        found = find(where)
    except (ImportError, AttributeError) as error:
        raise AssertionError(
            f"verl has no {where} any more ({error}); uirl.integrations.verl needs a new hook"
        ) from None
    wrapped = getattr(found, "__wrapped__", found)
    got = tuple(name for name in inspect.signature(wrapped).parameters if name != "cls")
    assert got == EXPECTED[where], f"verl changed the parameters of {where}"


def test_an_output_has_the_fields_we_fill() -> None:
    fields = set(find("verl.experimental.agent_loop.agent_loop:AgentLoopOutput").model_fields)
    assert fields >= {
        *("prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "multi_modal_data"),
        *("num_turns", "metrics", "extra_fields"),
    }
    server = set(find("verl.workers.rollout.replica:TokenOutput").model_fields)
    assert server >= {"token_ids", "log_probs", "stop_reason", "extra_fields"}


def test_our_trainer_is_registered_under_its_name() -> None:
    from uirl.integrations.verl import v1

    assert find("verl.trainer.ppo.v1:get_trainer_cls")(v1.CREDITING) is v1.EnvironmentPPOTrainer


def test_the_cpu_is_registered_in_every_registry() -> None:
    from tests.integrations.verl.cpu import ROLLOUT, engine, platform, rollout

    assert type(find("verl.plugin.platform:get_platform")()) is platform.CPUPlatform
    engines = find("verl.workers.engine.base:EngineRegistry")
    assert engines.get_engine_cls("language_model", "fsdp2") is engine.CPULanguageModel
    assert engines.get_engine_cls("value_model", "fsdp2") is engine.CPUValueModel
    assert find("verl.workers.rollout.replica:RolloutReplicaRegistry").get(ROLLOUT) is rollout.CPUReplica
    # verl has no public way to enter an adapter of weights: this is the one private dictionary we write to
    assert find("verl.workers.rollout.base:get_rollout_class")(ROLLOUT, "async") is rollout.WeightCourier


def test_the_replay_buffer_still_polls_and_says_when_nothing_can_be_learned() -> None:
    buffer = find("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer")
    assert "poll_interval" in inspect.signature(buffer.__init__).parameters
    assert "self.poll_interval" in inspect.getsource(buffer._wait_for_next_poll)
    assert "no materializable trajectories" in inspect.getsource(buffer.sample)


def test_a_batch_of_the_queue_can_be_narrowed() -> None:
    meta = find("transfer_queue:KVBatchMeta")
    assert {"keys", "tags", "partition_id", "extra_info"} <= {field.name for field in dataclasses.fields(meta)}
    assert tuple(inspect.signature(meta.select_keys).parameters) == ("self", "keys_to_select")


def test_grpo_reads_one_score_per_episode_from_its_last_sequence() -> None:
    """Several sequences of one episode get its advantage (`ROW_BY_ROW`), other estimators are delegated."""
    source = inspect.getsource(find("verl.trainer.ppo.v1.utils:compute_advantage_for_multi_trajectories"))
    assert "AdvantageEstimator.GRPO" in source
    assert 'rsplit("_", 2)' in source


@pytest.mark.parametrize(("module", "fits"), [("", False), ("class AutoModelForCausalLMWithValueHead: ...", True)])
def test_a_trl_that_verl_stumbles_over_is_refused(
    module: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trl.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trl", raising=False)
    try:
        with (
            contextlib.nullcontext()
            if fits
            else pytest.raises(ConfigError, match="has no such class; pip uninstall trl")
        ):
            refuse_trl()
    finally:
        sys.modules.pop("trl", None)


class Actor:
    """Does nothing, for as long as it is told."""

    def __init__(self) -> None:
        self._free = threading.Event()

    def wait(self) -> None:
        self._free.wait()

    def free(self) -> None:
        self._free.set()

    def die(self) -> None:
        os._exit(1)


def started() -> Any:
    actor = ray.remote(Actor).options(num_cpus=0.1).remote()
    ray.get(actor.__ray_ready__.remote())
    return actor


def killed() -> Any:
    actor = started()
    with pytest.raises(ray.exceptions.ActorDiedError):
        ray.get(actor.die.remote())
    return actor


def test_a_dead_actor_is_named_and_a_busy_one_is_not() -> None:
    busy, idle, dead = started(), started(), killed()
    waiting = busy.wait.remote()
    watch = Watch({"busy": busy, "idle": idle, "gone": dead}, every=0.0)
    found: dict[str, Any] = {}
    while not found:
        found = watch.dead()
    assert set(found) == {"gone"}
    with pytest.raises(ProcessLost, match=r"gone died: .*checkpoint\.resume=true"):
        check_until_told(watch)
    with pytest.raises(ray.exceptions.ActorDiedError) as caught:
        ray.get(dead.free.remote())
    assert str(watch.lost(caught.value)).startswith("gone died: ")
    assert str(watch.lost(ray.exceptions.WorkerCrashedError())).startswith("a process of the run died: ")
    ray.kill(busy)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(waiting)
    ray.kill(idle)


def test_waiting_for_episodes_ends_where_a_process_died_or_an_error_is_for_the_person() -> None:
    polls: list[str] = []
    sampled: list[str] = []
    complaints: list[Exception] = []

    def wait(partition: str, since: float) -> float:
        polls.append(partition)
        return since

    def sample(partition_id: str) -> int:
        sampled.append(partition_id)
        return 5

    buffer = SimpleNamespace(_wait_for_next_poll=wait, sample=sample)
    alive = started()
    watch = Watch({"the learner": alive}, every=0.0)
    watch_over(SimpleNamespace(replay_buffer=buffer), watch, lambda: next(iter(complaints), None))
    assert buffer._wait_for_next_poll("train", 1.0) == 1.0
    assert buffer.sample(partition_id="train") == 5
    ray.kill(alive)
    with pytest.raises(ProcessLost, match="the learner died"):
        poll_until_told(buffer)
    assert polls[0] == "train"
    complaints.append(ConfigError("no such picture"))
    with pytest.raises(ConfigError, match="no such picture"):
        buffer.sample(partition_id="val")
    assert sampled == ["train", "val"]


def check_until_told(watch: Watch) -> None:
    while True:
        watch.check()


def poll_until_told(buffer: Any) -> None:
    while True:
        buffer._wait_for_next_poll("val", 1.0)


def test_the_actors_of_a_step_are_found_once_each() -> None:
    group = SimpleNamespace(workers=["a", "b"])
    both = SimpleNamespace(actor_rollout_wg=group, critic_wg=group, get_reward_handles=lambda: ["r"])
    assert actors_of(both, SimpleNamespace(agent_loop_workers=["w"])) == {
        "agent-loop worker 0": "w",
        "learner rank 0": "a",
        "learner rank 1": "b",
        "reward worker 0": "r",
    }

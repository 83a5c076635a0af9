"""What holds where nobody says otherwise: the defaults of everything that plays, keeps and chooses episodes."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from uirl.curriculum import TaskCurriculum
from uirl.curriculum.levels import Evidence
from uirl.images import ImageStore, Screenshot
from uirl.rollout import (
    Collector,
    EngineAgent,
    EpisodeLimits,
    EpisodeOptions,
    EpisodeSpec,
    MultiTurnInferenceEngine,
    MultiTurnManager,
    Response,
)
from uirl.rollout.conversation import STYLES, ContextWindow, MessageStyle
from uirl.rollout.multi_actor_runner import MultiActorOptions, MultiActorRunner
from uirl.rollout.players import Order
from uirl.rollout.task_runner import TaskRunner, TaskRunnerOptions
from uirl.storage import TrajectoryStore, export_sft
from uirl.storage.labels import Label

SAMPLING = "max_tokens=256 temperature=1.0 top_p=1.0 top_k=0"
SERVERS = "task_prompt='' session_type='simple_data_entry' action_format='json' options=None environment='ui_verifiers'"
MORE = "task_id=None group_id=None level=None"
RUNNER = (
    "max_steps=50 max_tokens=256 temperature=1.0 top_p=1.0 seed=None system_prompt=None step_timeout=120.0 "
    "reset_timeout=300.0"
)
USUAL: list[tuple[Any, str]] = [
    (ContextWindow, "max_images=None token_budget=None keep_images=None"),
    (MessageStyle, "text_apart=False dropped='(earlier picture)' strip_replies=False text_parts=False"),
    (EpisodeSpec, "group_id='' level=None start=()"),
    (EpisodeLimits, "max_turns=16 max_tokens=None max_seconds=None"),
    (EpisodeOptions, "reward_fn=None system_prompt=None opening='' fed_as_learner=True"),
    (Response, "log_probs=() finish_reason='stop' policy_version=0"),
    (EngineAgent, "for_training=True"),
    (Order, "split='train' temperature=None expert=False control=None"),
    (Collector, "parallel=256 retries=1 step_timeout=60.0 reset_timeout=120.0 on_finished=None _slots=None"),
    (MultiTurnManager, "env=None max_turns=16"),
    (MultiTurnInferenceEngine, "max_turns=5 system_prompt=None tool_manager=None enable_tools=False"),
    (MultiTurnInferenceEngine.start_conversation, "images=() seed=None"),
    (MultiTurnInferenceEngine.step, f"message='' {SAMPLING}"),
    (MultiTurnInferenceEngine.run_episode, f"initial_prompt='' max_turns=None {SAMPLING} seed=None"),
    (TaskRunnerOptions, RUNNER),
    (TaskRunner, f"trajectory_queue=None {SERVERS} environment_options=None images=None"),
    (
        MultiActorOptions,
        f"{RUNNER} group_size=1 max_waiting=256 restart_backoff=1.0 max_backoff=60.0 images=None",
    ),
    (MultiActorRunner, f"{SERVERS} environment_options=None"),
    (MultiActorRunner.stop, "timeout=30.0"),
    (TaskCurriculum, "min_attempts_per_task=5 initial_distribution=None seed=0"),
    (TaskCurriculum.update_group, "step=0 signal=None"),
    (TaskCurriculum.update_success_rate, "step=0"),
    (Evidence, "wins=0.0 weight=0.0 step=0 attempts=0 heard=-1"),
    (Label, "error_step=None note='' by='' time=0.0"),
    (TrajectoryStore, "read_only=False keep_images=True origin=None wait=30.0"),
    (TrajectoryStore.add_many, "split='train' images=None"),
    (TrajectoryStore.get, "pictures=True tokens=True"),
    (TrajectoryStore.list, f"step=None split=None success=None {MORE} limit=None newest_first=False"),
    (export_sft, "system_prompt=None tools=() each_reply=False view=None order=None"),
    (ImageStore, "room=1073741824"),
    (Screenshot, "hash=''"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "usual"), USUAL, ids=[made.__qualname__ for made, _ in USUAL])
def test_what_holds_where_nobody_says_otherwise(made: Any, usual: str) -> None:
    given = [p for p in signature(made).parameters.values() if p.default is not p.empty]
    plain = [p for p in given if isinstance(p.default, str | int | float | tuple | None)]
    assert " ".join(f"{p.name}={p.default!r}" for p in plain) == usual


def test_the_styles_of_messages() -> None:
    assert {
        "plain": MessageStyle(),
        "mai_ui": MessageStyle(text_apart=True, dropped="", strip_replies=True, text_parts=True),
    } == STYLES

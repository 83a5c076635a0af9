"""Rows and rewards for verl: which episode comes next, and that a run that stops continues with the same ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from tensordict import TensorDict
from torchdata.stateful_dataloader import StatefulDataLoader
from verl import DataProto
from verl.utils.dataset.rl_dataset import collate_fn

from tests.conftest import tiny_model
from tests.integrations.verl.runs import config, trainer
from tests.integrations.verl.worlds import Fragile, Ladder, TwoLooks
from uirl.environments import GuessNumberEnvironment
from uirl.errors import ConfigError, EnvironmentFailure
from uirl.integrations.verl.record import RunObjects, start_coordinator
from uirl.integrations.verl.settings import put
from uirl.integrations.verl.tasks import CustomEnvironmentDataset, EnvironmentRewardWrapper, environment_reward
from uirl.rollout.episode import derive_seed
from uirl.training.tasks.curriculum import CurriculumTasks
from uirl.training.tasks.sources import UniformTasks
from uirl.types import Failure, Task, Trajectory

pytestmark = pytest.mark.verl


def made(**options: Any) -> CustomEnvironmentDataset:
    return CustomEnvironmentDataset(TwoLooks(), None, max_samples=6, **options)


def said(row: dict[str, Any]) -> tuple[Any, ...]:
    info = row["extra_info"]
    return info["task"]["id"], info["seed"], info["draws"], info["group"]


def outcome(task: str, success: bool | None = True, failure: Failure | None = None) -> Trajectory:
    metrics = {} if success is None else {"success": float(success)}
    return Trajectory(task=Task(task), metrics=metrics, failure=failure)


def test_a_row_names_environment_task_and_seed() -> None:
    row = CustomEnvironmentDataset(TwoLooks(), None, max_samples=3, seed=4)[0]
    info = row["extra_info"]
    assert row["agent_name"] == "uirl"
    assert row["data_source"] == "TwoLooks"
    assert info["task"]["id"].startswith("letters/")
    assert isinstance(info["seed"], int)
    assert row["raw_prompt"] == [{"role": "user", "content": info["task"]["goal"]}]
    json.dumps(info)


def test_rows_of_a_named_environment_say_its_name(tmp_path: Path) -> None:
    run = trainer(config(tmp_path, "environment.name=guess_number"))
    row = CustomEnvironmentDataset(config=run.config.data, data_files="uirl:train")[0]
    assert row["data_source"] == row["extra_info"]["environment"] == "guess_number"


@pytest.mark.parametrize("given", [None, 7])
@pytest.mark.parametrize("curriculum", [None, Ladder()])
def test_instances_and_draws_have_the_seeds_of_the_local_trainer(
    tmp_path: Path, given: int | None, curriculum: Any
) -> None:
    """`training.seed` makes the instances, `inference.seed` the draws, or `training.seed` these too."""
    seeds = ("training.seed=3", f"inference.seed={'null' if given is None else given}")
    run = trainer(config(tmp_path, "environment.name=tests.integrations.verl.worlds:TwoLooks", *seeds))
    row = CustomEnvironmentDataset(config=run.config.data, data_files="uirl:train", curriculum=curriculum)[0]
    info = row["extra_info"]
    assert info["seed"] == derive_seed(3, "train", "instance", 0)
    ((spec,),) = UniformTasks(TwoLooks().tasks(), seed=given or 3, instance_seed=3).groups(1, 1)
    assert (info["seed"], info["draws"]) == (spec.environment_seed, spec.sampling_seed)


@pytest.mark.parametrize("batches", [1, 3, 4])
def test_verls_loader_continues_in_and_at_the_end_of_an_epoch(batches: int) -> None:
    """Epochs of 3 batches: stopped within one, at its end (1 x 3), and after the first of the next."""

    def loader() -> tuple[CustomEnvironmentDataset, Any]:
        dataset = made(curriculum=Ladder())
        return dataset, StatefulDataLoader(dataset, batch_size=2, collate_fn=collate_fn, num_workers=0)

    def read(loader: Any, count: int) -> list[Any]:
        """As verl reads: a new epoch where one ends."""
        rows, at = [], iter(loader)
        while len(rows) < count:
            try:
                batch = next(at)
            except StopIteration:
                at = iter(loader)
                batch = next(at)
            rows.append([info["group"] for info in batch["extra_info"]])
        return rows

    _, whole = loader()
    expected = read(whole, batches + 3)
    first, begun = loader()
    assert read(begun, batches) == expected[:batches]
    state, own = begun.state_dict(), json.loads(json.dumps(first.state_dict()))
    second, resumed = loader()
    resumed.load_state_dict(state)
    second.load_state_dict(own)
    assert read(resumed, 3) == expected[batches:]


def test_held_out_rows_are_those_of_their_index() -> None:
    dataset = made(split="eval")
    first = [said(dataset[i]) for i in (0, 1, 2)]
    assert [said(dataset[i]) for i in (2, 1, 0)] == first[::-1]
    other = CustomEnvironmentDataset(TwoLooks(), None, max_samples=6, split="eval", seed=99)
    assert said(other[0])[1] == first[0][1], "the same instances in every run"
    assert first[0][1] not in {said(made()[i])[1] for i in range(6)}


def test_a_curriculum_chooses_and_hears() -> None:
    ladder = Ladder()
    dataset = made(curriculum=ladder)
    assert ladder.names == ["letters/few", "letters/some", "letters/many"]
    with pytest.raises(ConfigError, match=r"needs sample_task\(\)"):
        made(curriculum=object())
    first = dataset[0]["extra_info"]["task"]["id"]
    dataset.report(
        [
            outcome(first),
            outcome(first, success=False),
            outcome(first, success=None),
            outcome(first, failure=Failure("engine", "gone")),
        ],
        7,
    )
    assert ladder.reports == [[first, True, 7], [first, False, 7]], "neither failures nor unjudged episodes count"


def test_the_section_of_the_config_chooses_and_tells(tmp_path: Path) -> None:
    run = trainer(config(tmp_path, "curriculum.enabled=true", "curriculum.min_attempts_per_task=1"), TwoLooks())
    datasets = [
        CustomEnvironmentDataset(TwoLooks(), config=run.config.data, data_files=f"uirl:{split}")
        for split in ("train", "eval")
    ]
    assert [isinstance(dataset.source, CurriculumTasks) for dataset in datasets] == [True, False]
    task = datasets[0][0]["extra_info"]["task"]["id"]
    datasets[0].report([outcome(task), outcome(task, success=False), outcome(task, success=False)], 3)
    row = datasets[0].take_metrics()
    assert (row["curriculum/new/drawn"], row["curriculum/new/tasks"]) == (1.0, 2)
    assert row["curriculum/new/success"] == 1.0
    resumed = CustomEnvironmentDataset(TwoLooks(), config=run.config.data, data_files="uirl:train")
    resumed.load_state_dict(json.loads(json.dumps(datasets[0].state_dict())))
    assert [said(resumed[i]) for i in range(4)] == [said(datasets[0][i]) for i in range(4)]


def test_the_curriculums_state_goes_along() -> None:
    one, other = Ladder(), Ladder()
    dataset, resumed = made(curriculum=one), made(curriculum=other)
    for i in range(3):
        dataset.report([outcome(dataset[i]["extra_info"]["task"]["id"])], i)
    resumed.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
    assert other.reports == one.reports
    assert [said(resumed[i]) for i in range(3)] == [said(dataset[i]) for i in range(3)]


def test_verls_own_datasets_use_what_the_run_was_given(tmp_path: Path, one_ray: None) -> None:
    run = trainer(config(tmp_path), TwoLooks())
    objects = RunObjects(TwoLooks(), None, (Task("only/one", goal="this"),), None, Ladder())
    name, coordinator = start_coordinator({}, None, objects.pack())
    put(run.config, "data.uirl.coordinator", name)
    dataset = CustomEnvironmentDataset(
        data_files="uirl:train", tokenizer=None, config=run.config.data, processor=None, max_samples=-1
    )
    assert len(dataset) == 12, "3 updates of 4 groups"
    assert dataset[0]["extra_info"]["task"]["id"] == "only/one"
    assert isinstance(dataset.source, CurriculumTasks)
    held_out = CustomEnvironmentDataset(data_files="uirl:eval", config=run.config.data)
    assert len(held_out) == 4
    assert not isinstance(held_out.source, CurriculumTasks)
    ray.kill(coordinator)


def row(seed: int) -> dict[str, Any]:
    return {"environment": "guess_number", "task": "number", "seed": seed}


def secret(seed: int) -> int:
    """What the environment hides in the instance of this seed."""
    world = GuessNumberEnvironment()
    world.reset(seed=seed)
    return next(n for n in range(1, 8) if _hits(seed, n))


def _hits(seed: int, guess: int) -> bool:
    world = GuessNumberEnvironment()
    world.reset(seed=seed)
    return bool(world.step(str(guess))[1])


def test_a_response_is_one_action_in_the_instance_of_its_row() -> None:
    wrapper = EnvironmentRewardWrapper(GuessNumberEnvironment())
    for seed in (1, 2, 3):
        right = str(secret(seed))
        call = {"data_source": "guess_number", "ground_truth": None, "extra_info": row(seed)}
        assert wrapper(solution_str=right, **call) == {"score": 1.0, "success": True, "turns": 1}
        assert wrapper(solution_str="nine", **call)["score"] == 0.0


def test_the_reward_function_has_the_last_word() -> None:
    def per_turn(trajectory: Trajectory) -> float:
        return 0.5 + trajectory.total_reward() / len(trajectory)

    wrapper = EnvironmentRewardWrapper(GuessNumberEnvironment(), per_turn)
    assert wrapper("x", str(secret(1)), None, row(1))["score"] == 1.5


def test_a_broken_environment_is_no_zero() -> None:
    class Broken(TwoLooks):
        def step(self, action: str) -> Any:
            raise OSError("the cable was pulled")

    with pytest.raises(EnvironmentFailure, match="the cable was pulled"):
        EnvironmentRewardWrapper(Broken())("x", "abc", None, {"task": "t", "seed": 1})
    assert EnvironmentRewardWrapper(Fragile())("x", "abc", None, {"task": "t", "seed": 4})["score"] == 0.5


def test_by_name_it_serves_verls_reward_workers() -> None:
    made = asyncio.run(environment_reward("guess_number", str(secret(5)), None, row(5)))
    assert made["score"] == 1.0
    wide = asyncio.run(environment_reward("x", "8", None, row(5), options={"n": 8}))
    assert wide["turns"] == 1
    with pytest.raises(ConfigError, match="names no environment"):
        asyncio.run(environment_reward("x", "1", None, {"seed": 1}))


def test_a_batch_of_token_ids_gets_a_tensor_of_scores() -> None:
    tokenizer = tiny_model("uirl/tiny-lm").tokenizer
    replies = [str(secret(1)), "zzz"]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in replies]
    width = max(map(len, ids)) + 1
    responses = torch.zeros((2, width), dtype=torch.long)
    mask = torch.zeros((2, width + 1), dtype=torch.long)
    mask[:, 0] = 1
    for i, own in enumerate(ids):
        responses[i, : len(own)] = torch.tensor(own)
        mask[i, 1 : 1 + len(own)] = 1
    batch = TensorDict(
        {"prompts": torch.ones((2, 1), dtype=torch.long), "responses": responses, "attention_mask": mask}, batch_size=2
    )
    data = DataProto(
        batch=batch,
        non_tensor_batch={"extra_info": np.array([row(1), row(1)], dtype=object)},
        meta_info={"tokenizer": tokenizer},
    )
    assert EnvironmentRewardWrapper(GuessNumberEnvironment())(data).tolist() == [1.0, 0.0]
    del data.meta_info["tokenizer"]
    with pytest.raises(ConfigError, match="holds token ids alone"):
        EnvironmentRewardWrapper(GuessNumberEnvironment())(data)

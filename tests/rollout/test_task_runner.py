"""`TaskRunner` as its document shows it, against a server of ui-verifiers."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import pytest

from tests.environments.remote.faults import Faulty
from tests.environments.remote.form import middle, row_place
from tests.environments.remote.running import running, serving, until
from tests.environments.remote.stand_ins import many_sessions, single_session
from tests.rollout.worlds import scripted
from uirl.algorithms import RejectionSampling
from uirl.errors import AlignmentError, ConfigError, ContractError
from uirl.inference import LoadedModel, TextEngine
from uirl.learner import VLMWrapper
from uirl.rollout.samples import samples_of
from uirl.rollout.task_runner import TaskRunner, TaskRunnerOptions
from uirl.training import Trainer

SUBMIT = (700, 440, 840, 490)


@pytest.fixture(scope="module")
def wrapper() -> VLMWrapper:
    return VLMWrapper(model_name="uirl/tiny-vlm", device="cpu")


def test_the_program_of_the_document(wrapper: VLMWrapper) -> None:
    app = many_sessions()
    with running(app) as url:
        trajectory_queue: queue.Queue[Any] = queue.Queue()
        runner = TaskRunner(
            ui_env_url=url,
            model=wrapper,
            trajectory_queue=trajectory_queue,
            task_prompt="Complete the data entry form",
            session_type="simple_data_entry",
            action_format="json",
            options=TaskRunnerOptions(max_steps=2, max_tokens=4),
            environment_options={"delay": 0},
        )
        trajectory = runner.run_episode()
        assert f"Collected {len(trajectory)} steps with reward {trajectory.total_reward()}" == (
            "Collected 2 steps with reward 0.0"
        )
        assert trajectory_queue.get_nowait() is trajectory
        assert trajectory_queue.empty()
        assert trajectory.states[0] == "Complete the data entry form"
        assert (trajectory.failure, trajectory.stop_reason) == (None, "max_turns")
        assert [desk.id for desk in app.state.desks.values()] == [1]
        assert not app.state.running(), "the session was not ended"
        # what it collected can be learned from
        (sample,) = samples_of(trajectory)
        assert all(
            log_prob < 0 for log_prob, own in zip(sample.rollout_log_probs, sample.response_mask, strict=True) if own
        )
        trainer = Trainer(wrapper, RejectionSampling(reward_threshold=-1.0), batch_size=1, images=runner.images)
        assert trainer.train_step([trajectory])["policy_loss"] > 0


def reply(x: int, y: int, name: str = "click") -> str:
    return f'{{"action":"{name}","x":{x},"y":{y}}}'


def test_rewards_are_what_the_server_counted(vlm: LoadedModel) -> None:
    app = many_sessions()
    with running(app) as url:
        script = [reply(*row_place(2), "right_click"), reply(*middle(SUBMIT)), reply(*middle(SUBMIT))]
        engine = TextEngine(vlm, scripted(vlm, *script))
        runner = TaskRunner(
            url,
            engine,
            options=TaskRunnerOptions(max_steps=3, max_tokens=60, system_prompt="Be quick."),
            environment_options={"delay": 0, "wrong_cost": 0.1},
        )
        for episode in (1, 2):
            trajectory = runner.run_episode()
            assert trajectory.rewards == [0.0, 1.0, -0.1]
            assert trajectory.actions == script
            assert "Be quick." in vlm.tokenizer.decode(trajectory.turns[0].context_ids)
            assert set(app.state.desks) == set(range(1, episode + 1))
        assert not app.state.running()


def test_other_formats_of_actions(vlm: LoadedModel) -> None:
    app = single_session()
    with running(app) as url:
        said = 'Thought: the form.\nAction: click\nAction Input: {"x": 600, "y": 300}'
        engine = TextEngine(vlm, scripted(vlm, said))
        runner = TaskRunner(
            url,
            engine,
            action_format="react",
            options=TaskRunnerOptions(max_steps=1, max_tokens=80),
            environment_options={"delay": 0},
        )
        trajectory = runner.run_episode()
        assert app.state.told == ["left_click"]
        assert trajectory.turns[0].action.thought == "the form."
        prompt = vlm.tokenizer.decode(trajectory.turns[0].context_ids)
        assert "Action Input" in prompt


def test_a_failed_episode_is_in_the_queue_as_a_failure(vlm: LoadedModel) -> None:
    faulty = Faulty(many_sessions())
    with running(faulty) as url:
        faulty.rule = lambda method, path: "500" if path.endswith("/act") else None
        into: queue.Queue[Any] = queue.Queue()
        engine = TextEngine(vlm, scripted(vlm, reply(600, 300)))
        trajectory = TaskRunner(url, engine, into, options=TaskRunnerOptions(max_tokens=60)).run_episode()
        assert into.get_nowait() is trajectory
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "environment"
        assert "500" in trajectory.failure.message
        with pytest.raises(AlignmentError):
            samples_of(trajectory)
        assert not faulty.state.running()


def test_a_seeded_runner_repeats_itself_on_our_server(wrapper: VLMWrapper) -> None:
    def played(url: str) -> list[Any]:
        options = {"width": 56, "height": 56, "delay": 0}
        runner = TaskRunner(
            url, wrapper, options=TaskRunnerOptions(seed=5, max_steps=2, max_tokens=6), environment_options=options
        )
        return [runner.run_episode().turns for _ in range(2)]

    with serving("screen", options={"retries": 3}) as served:
        assert played(served.url) == played(served.url)
        assert served.active == 0


def test_runners_that_begin_at_once_on_two_threads_share_the_loop_of_their_engine(vlm: LoadedModel) -> None:
    found: list[Any] = []

    async def own_loop() -> Any:
        return asyncio.get_running_loop()

    for _ in range(20):
        engine, gate = TextEngine(vlm, scripted(vlm, "x")), threading.Barrier(2)

        def begin(engine: TextEngine = engine, gate: threading.Barrier = gate) -> None:
            gate.wait()
            found.append(engine.run(own_loop()))

        threads = [threading.Thread(target=begin) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one, other = found[-2:]
        assert one is other
        engine.close()


def test_other_protocols(vlm: LoadedModel) -> None:
    with serving("screen", options={"retries": 5}) as served:
        for name in ("remote", "openenv"):
            engine = TextEngine(vlm, scripted(vlm, reply(1, 1)))
            trajectory = TaskRunner(
                served.url, engine, environment=name, options=TaskRunnerOptions(max_steps=2, max_tokens=60)
            ).run_episode()
            assert (len(trajectory), trajectory.stop_reason) == (2, "max_turns")
            until(lambda: served.active == 0)


def test_the_environment_of_a_runner_has_its_kind_of_session_and_its_limit(vlm: LoadedModel) -> None:
    engine = TextEngine(vlm, scripted(vlm, "x"))
    address = "http://127.0.0.1:1"
    own: Any = TaskRunner(address, engine, session_type="forms", options=TaskRunnerOptions(max_steps=3)).environment
    assert (own.options.session_type, own.max_turns) == ("forms", 3)
    given = {"session_type": "mine", "max_turns": 9}
    asked: Any = TaskRunner(
        address, engine, session_type="forms", options=TaskRunnerOptions(max_steps=3), environment_options=given
    ).environment
    assert (asked.options.session_type, asked.max_turns) == ("mine", 9)


def test_what_does_not_fit_is_said_at_once(vlm: LoadedModel) -> None:
    with pytest.raises(ContractError, match="plays with a VLMWrapper or a TextEngine, got object"):
        TaskRunner("http://127.0.0.1:1", object())
    engine = TextEngine(vlm, scripted(vlm, "x"))
    with pytest.raises(ConfigError, match="no address of a server"):
        TaskRunner("127.0.0.1:1", engine)
    with pytest.raises(ConfigError, match="unknown action format"):
        TaskRunner("http://127.0.0.1:1", engine, action_format="jsom")
    with pytest.raises(ConfigError, match="no option 'dlay'"):
        TaskRunner("http://127.0.0.1:1", engine, environment_options={"dlay": 0})

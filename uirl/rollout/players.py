"""Which agent plays an episode: the policy, the environment's demonstrator, or one of its controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from uirl.environments.base import BaseEnvironment
from uirl.errors import ContractError, RolloutFailure
from uirl.images import ImageStore
from uirl.inference.base import InferenceEngine, SamplingParams
from uirl.parsers import create_parser
from uirl.rollout.collector import Collector, not_begun
from uirl.rollout.episode import Agent, ConstantAgent, EngineAgent, EpisodeSpec, ExpertAgent
from uirl.rollout.replay import ReplayAgent
from uirl.types import Action, Trajectory


@dataclass(frozen=True, slots=True)
class Order:
    """Which split an episode belongs to and which agent plays it; by default the policy."""

    split: str = "train"
    """'train', or 'eval': the environment of evaluations."""
    temperature: float | None = None
    """Of the policy's sampling; None: that of the config."""
    expert: bool = False
    """The environment's demonstrator plays."""
    control: str | None = None
    """This control of the environment plays: see `BaseEnvironment.controls`."""


class Players:
    """Plays what orders name, in the environments of this process.

    `collectors`: split -> its collector, which belongs to the caller. `sampling`: of the policy, which `engine` has.
    """

    def __init__(self, collectors: Mapping[str, Collector], engine: InferenceEngine, sampling: SamplingParams) -> None:
        self._collectors, self._engine, self._sampling = collectors, engine, sampling
        self._control: tuple[tuple[str, str], Collector, Agent | None] | None = None
        """The newest control: its split and name, who collects its episodes, who plays (None: the policy)."""
        self._variants: list[Collector] = []

    async def play_once(self, spec: EpisodeSpec, order: Order, images: ImageStore | None = None) -> Trajectory:
        """Play one attempt at one episode. `images`: where its pictures go; None: to the store of the collector.

        Raises ContractError where the environment has no control of the name that is ordered.
        """
        collector, agent = self._collectors[order.split], self._policy(spec, order)
        if order.expert:
            agent = ExpertAgent(collector.chat, collector.parser)
        elif order.control is not None:
            try:
                collector, said = await self._cast(order.split, order.control)
            except RolloutFailure as error:  # of a server that is asked for its controls
                return not_begun(spec, error)
            agent = said or agent
        if spec.start:
            agent = ReplayAgent(spec.start, agent)
        return await (collector if images is None else replace(collector, images=images)).play_once(spec, agent)

    async def close(self) -> None:
        """Close what controls left open. Calling it twice is fine."""
        self._control = None
        for variant in self._variants:
            await variant.close()

    def _policy(self, spec: EpisodeSpec, order: Order) -> Agent:
        sampling = self._sampling
        if order.temperature is not None:
            sampling = replace(sampling, temperature=order.temperature)
        return EngineAgent(self._engine, sampling, spec.trajectory_id, for_training=order.split == "train")

    async def _cast(self, split: str, name: str) -> tuple[Collector, Agent | None]:
        """Return the collector of a control's episodes and the agent that plays them (None: the policy). Instances of
        the control before it are closed."""
        if self._control is None or self._control[0] != (split, name):
            collector, agent = self._collectors[split], None
            control = _control_of(collector.environment, name)
            before = list(self._variants)
            if isinstance(control, BaseEnvironment):
                collector = collector.for_variant(control)
                self._variants.append(collector)
            else:
                agent = _constant(collector, control)
            self._control = (split, name), collector, agent
            for one in before:
                await one.close()
            return collector, agent
        return self._control[1:]


def _control_of(environment: BaseEnvironment, name: str) -> BaseEnvironment | Action | str:
    controls = environment.controls()
    if name not in controls:
        known = ", ".join(sorted(controls)) or "none"
        raise ContractError(f"{type(environment).__name__} has no control {name!r} in this process, but {known}")
    return controls[name]


def _constant(collector: Collector, said: Action | str) -> Agent:
    if isinstance(said, Action):
        parser = create_parser(collector.environment.action_format)
        said = parser.for_tools(collector.environment.callable_tools()).render(said)
    return ConstantAgent(collector.chat, said)

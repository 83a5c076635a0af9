"""What a run under verl takes of its GPUs and hosts, from verl's config: the sum that `uirl verl --plan` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from uirl.integrations.verl.config.run_memory import RunMemory
from uirl.integrations.verl.placement import check_heads
from uirl.training.plan.moment import FREE, GIB, Moment
from uirl.training.plan.shape import Shape
from uirl.training.plan.workload import PICTURE


@dataclass(frozen=True, slots=True)
class Plan:
    """The moments of a run, and what its rollout servers can hold."""

    moments: tuple[Moment, ...]
    cache_tokens: float
    """Tokens that the cache of one rollout server holds."""
    longest: int
    """Tokens of the longest sequence."""
    servers: int

    @property
    def problems(self) -> list[str]:
        """Return the reasons why the run does not fit; empty: it does."""
        out = [moment.problem for moment in self.moments if not moment.fits]
        if self.cache_tokens < self.longest:
            out.append(
                f"the cache of a rollout server holds {max(0, int(self.cache_tokens))} tokens, and a sequence may have "
                f"{self.longest}; raise rollout.gpu_memory_utilization or rollout.tensor_model_parallel_size"
            )
        return out

    def __str__(self) -> str:
        lines = [str(moment) for moment in self.moments]
        episodes = self.cache_tokens / self.longest
        lines.append(
            f"servers: {self.servers}, each with a cache of {self.cache_tokens / 1000:.0f} thousand tokens: "
            f"{self.servers * max(0, int(episodes))} of the longest episodes at once, the others wait"
        )
        return "\n".join([*lines, *(f"does not fit: {problem}" for problem in self.problems)])


def plan_of(
    config: Any,
    shape: Shape,
    *,
    gpu_gib: float = 80.0,
    host_gib: float | None = None,
    picture: tuple[int, int] = PICTURE,
) -> Plan:
    """Return the plan of a run. `config`: verl's whole config. `gpu_gib`, `host_gib`: memory of a GPU and of a node;
    None: unknown. `picture`: width and height of a screenshot in pixels. Raises ConfigError for a split that does not
    divide the attention heads of the model."""
    check_heads(config, shape.heads, shape.kv_heads)
    run = RunMemory(config, shape, gpu_gib * GIB, picture)
    may = (1 - FREE) * gpu_gib * GIB
    moments = [Moment("GPU", name, parts, may) for name, parts in run.on_gpu()]
    host = None if host_gib is None else (1 - FREE) * host_gib * GIB
    moments += [Moment("host", name, parts, host) for name, parts in run.on_host()]
    return Plan(tuple(moments), run.cache_tokens(), run.longest, run.servers)

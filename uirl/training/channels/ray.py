"""The channel of a run whose episodes are played by Ray actors, on any machine of a cluster."""

from __future__ import annotations

from uirl.inference.ray.cluster import RayCluster, demand_of
from uirl.inference.ray.engines import engines_in_ray
from uirl.training.actors.launch_ray import RayLauncher
from uirl.training.assembly import Assembly
from uirl.training.channels.base import GroupRules
from uirl.training.channels.process import PoolChannel


class RayChannel(PoolChannel):
    """Actors are Ray actors, `ray.num_actors` of them, which reach the learner at this machine's address in the
    cluster. Raises ConfigError where there is no cluster, and for what other processes cannot make."""

    def __init__(self, parts: Assembly, rules: GroupRules | None = None) -> None:
        settings = parts.config.ray
        cluster = RayCluster(settings, demand_of(settings, engines_in_ray(parts.config)))
        try:
            launcher = RayLauncher(cluster, settings)
            super().__init__(parts, launcher, settings.num_actors, rules, host=cluster.host)
        except BaseException:
            cluster.close()
            raise

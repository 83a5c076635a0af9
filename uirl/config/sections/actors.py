"""Actors: who plays the episodes, how far they run ahead of the learner, and which groups are worth waiting for."""

from __future__ import annotations

from typing import ClassVar, Literal

from uirl.config.section import Count, Fraction, Index, PathText, Positive, Section


class ActorsConfig(Section):
    """Actors play episodes while the learner learns. With `staleness` 0 they wait for each other, as in one process."""

    key: ClassVar[str] = "actors"

    processes: Index = 0
    """Processes on this machine that play the episodes, each with environments of its own. They share the places of
    `rollout.parallel` and of the environment's `max_parallel`, and play evaluations, demonstrations and controls too.
    0: episodes are played in the learner's process."""
    silence: Positive = 30.0
    """Seconds without a sign of life after which an actor in another process is killed, its episodes are repeated and
    it is started again."""
    pictures: PathText | None = None
    """Folder in which this run makes one for the pictures that processes share; where other machines see it too, none
    is sent to or from them. None: the RAM disk, or the system's temporary folder where that has less than 4 GiB."""
    staleness: Index | Literal["auto"] = 0
    """How many versions older than the learner's the weights may be that began an episode. 0: an update learns from
    episodes of the newest weights alone, and nobody works while the other does. Above it the engine has a copy of the
    weights, episodes are played while the learner learns, and what became too old is dropped. 'auto': the most that
    keeps the data inside `max_gap` and `min_ess`; the log says why it moves. It needs log-probs of the learner's own to
    measure with: not rejection_sampling, and not `training.old_log_probs=rollout`."""
    max_gap: Positive = 0.02
    """'auto' keeps the mean |learner - engine| over the tokens of older weights (`stale/gap`) below so many nats."""
    min_ess: Fraction = 0.9
    """'auto' keeps the effective sample size of these tokens, as a share of them (`stale/ess`), above this."""
    spare_groups: Index = 0
    """Groups that are ordered beyond those that an update needs; the first to end are learned from. With `staleness` 0
    the others are given up then."""
    spare_members: Index = 0
    """Episodes that each group is ordered beyond its size; when so many have ended as a group needs, the others are
    given up. It prefers short episodes."""
    group_floor: Count | None = None
    """A group with fewer usable episodes is not learned from. None: 2 where `training.adv_estimator` compares within a
    group, else 1."""
    close_after: Positive | None = None
    """A group that has its floor is closed without its stragglers once it has run for so many times the median time
    of an episode; None: it waits for all. It needs a `group_floor` below the size of a group."""
    engines: Index = 0
    """Engine processes, each with a copy of the model; an episode stays on one. One that dies is started again while
    the others answer. They are on this machine, each on a GPU of its own where there are any besides the learner's;
    with `ray.use_ray` Ray finds places for them. 0: one engine, in the learner's process."""
    swap: Literal["token", "turn"] = "token"
    """When an engine takes new weights: 'token': between two tokens of the replies under way, which go on under them;
    'turn': once these have ended, while new requests wait."""
    keep_cache: bool = False
    """The attention cache of an episode outlives new weights; false: it is computed again, which costs a prefill per
    episode and update and makes log-probs those of the weights that sample."""

    @property
    def run_ahead(self) -> bool:
        """Whether episodes are played while the learner learns."""
        return self.staleness != 0

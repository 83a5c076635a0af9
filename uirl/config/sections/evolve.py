"""Rounds of playing, keeping what was right, and learning from it."""

from __future__ import annotations

from typing import ClassVar, Literal

from uirl.config.section import Count, Fraction, Index, Positive, Section


class EvolveConfig(Section):
    """`uirl evolve`: every round plays episodes with the policy as it is, keeps the solved ones and certified
    beginnings of failed ones, and fine-tunes the policy on them. `uirl train` does not read this section."""

    key: ClassVar[str] = "evolve"

    rounds: Count = 3
    """Rounds after round 0, which is the warm start."""
    episodes: Count = 256
    """Episodes that a round plays."""
    group_size: Count = 8
    """Episodes of the same instance: a failed one is compared with the solved ones of its group."""
    prefixes: Literal["off", "fork", "judge"] = "fork"
    """Beginnings of failed episodes: 'fork': up to where they left the way of a solved one; 'judge': where there is
    none, as far as the judge finds them right (verification.judge). 'off': none is kept."""
    certify: bool = True
    """A beginning is kept only if playing it again shows the same screens and, of a fork, if the solved episode's way
    solves the task from there. false: what forks and judge say is believed."""
    restarts: Fraction = 0.0
    """Share of a round's groups that start behind a beginning that the round before it kept."""
    rounds_kept: Count | None = None
    """Learn from the data of so many rounds, the newest; None: from all."""
    per_instance: Count = 4
    """Examples of one instance that are kept, solved ones first."""
    task_share: Positive = 2.0
    """A task has at most so many times its equal share of the examples of a round."""
    prefix_share: Fraction = 0.5
    """Beginnings are at most this share of the examples of a round."""
    epochs: Count = 2
    """Passes over the data in a round."""
    batch_size: Count = 64
    """Sequences per step of the optimiser."""
    learning_rate: Positive | None = None
    """Peak learning rate of AdamW, which begins anew in every round. None: 5e-4 for a built-in model; for a checkpoint
    1e-5, and 1e-4 for its adapters."""
    warmup_steps: Index = 5
    """Steps over which it rises from 0."""
    from_base: bool = False
    """Every round fine-tunes the policy of round 0; false: that of the round before."""
    parquet: bool = False
    """Also write the data as Parquet with pictures, for datasets (needs pyarrow)."""

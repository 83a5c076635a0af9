"""Actors: processes that own environments and play episodes; the learner's process owns everything else."""

"""Tasks and rewards of an environment for verl.

In the task-runner actor, where verl makes its datasets: `dataset` (rows that name an episode), `success_rate` (the
task sampler of the section `curriculum`).
In verl's reward workers: `reward`, for runs that keep verl's own loops.
"""

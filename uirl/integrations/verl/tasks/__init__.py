"""Tasks and rewards of an environment for verl.

In the task-runner actor, where verl makes its datasets: `dataset` (rows that name an episode), `own_curriculum` (a
class that the section `curriculum` names).
In verl's reward workers: `reward`, for runs that keep verl's own loops.
"""

"""Episodes of ours inside verl's rollout.

In an agent-loop worker (a Ray actor of verl's, several per run):

- `workers`, `pictures`: verl's worker and manager with errors reported to the coordinator, and pictures processed
  beside the event loop.
- `agent_loop` plays the episode of a row, `mobile_world` is the same for phones, `registration` enters both into verl.
- `context`: environments, renderer and limits, one per worker. `agent`: asks verl's servers for replies; `servers`:
  verl's client, which leaves dead servers out.
- `outputs`: trajectories -> sequences for verl; `packing`: their pixels as bytes.
- `tool`: an environment as tools of verl's own loop, without any of the above.

In a process of its own: `coordinator`, the Ray actor that keeps the record and hands out the objects of a run.
"""

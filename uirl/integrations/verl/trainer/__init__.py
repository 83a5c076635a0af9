"""verl's trainers with our curriculum, credit and record.

- In the driver: `trainer` (`create_trainer`: wires and checks a run), `task_runner` (starts verl's task-runner actor
  and ends it), `checkpoints` (a checkpoint of verl's as a HF folder).
- In the task-runner actor, where verl's trainer lives: `v1` and `legacy` (the two trainers), `credit` and `estimators`
  (advantages), `minibatches` (how an update is divided), `record` (`metrics.jsonl`), `run_state` (what checkpoints hold
  of ours), `liveness` (which processes still live).
- In the workers that hold a model: `vision_outputs` (verl's Qwen-VL and GLM-4V with transformers 5).
"""

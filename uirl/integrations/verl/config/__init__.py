"""A run under verl as a config: read, mapped to verl's keys, checked, and its memory planned. Runs in the driver.

- From ours to verl's: `mapping` (our key -> verl's keys), `strategies` (keys that differ between FSDP and Megatron),
  `grpo` (GRPO's settings in one object), `keys` (verl's schema, and how one key of it is set).
- From verl's to ours: `reading` (a YAML in verl's terms), `models` (folders that verl loads a policy from).
- What goes along in `data.uirl`, read in every process: `settings`; environment variables of a judge: `llm`.
- Checks before anything starts: `placement` (splits, GPUs, micro-batches, heads), `rewriting` (windows that rewrite
  history), `idle_keys` (keys that nobody would read). `roles` says who works on which GPU.
- `uirl verl --plan`: `plan` (the phases, what each holds and whether they fit).
"""

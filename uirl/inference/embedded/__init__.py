"""The embedded engine: continuous batching over any HF model, in this process.

`engine.py` joins the two halves: `scheduler.py` (who runs, in which rows of the cache; no torch) and `runner.py` (the
model: prefill and decode over the KV cache of `cache.py`, tokens drawn as in `sampling.py`). The runner holds cache and
masks against the model's own forward before the first request.
"""

"""The embedded engine: continuous batching over any HF model, in this process."""

"""Models and what their forward pass reads: loading, pictures, attention, chat templates, tiny models."""

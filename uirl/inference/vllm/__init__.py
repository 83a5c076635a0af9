"""vLLM as an engine, in processes of its own or behind its own server."""

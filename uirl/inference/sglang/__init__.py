"""SGLang as an engine, in this process or behind its own server."""

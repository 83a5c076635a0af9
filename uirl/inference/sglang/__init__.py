"""SGLang, in this process or behind its own server.

`engine.py` is the engine; it talks to either, by `backends.py`, which also says how SGLang is started.
"""

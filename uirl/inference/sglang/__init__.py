"""SGLang, in this process or behind its own server.

`engine.py` is the engine; it talks to one of `process.py` and `server.py`, which take the same requests.
`arguments.py` says how SGLang is started.
"""

"""vLLM as an engine, in processes of its own or behind its own server.

`engine.py` is the engine; it talks to one of `process.py` and `server.py` in the terms of `requests.py`.
`arguments.py` says how vLLM is started, `worker.py` is what its workers do for us.
"""

"""Any OpenAI-compatible server as an engine for evaluation.

`engine.py` is the engine; `probe.py` finds out by asking what a server can do; `wire.py` writes conversations as the
chat API takes them, and its answers as text; `answers.py` says what is read of an answer.
"""

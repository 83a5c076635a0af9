"""Address and key of the language model that environments and reward functions may ask: a judge, a user simulator.

They live in environment variables of the processes that play episodes and nowhere else: in no config, no file and no
message. An environment or a reward function that wants them reads `os.environ`.
"""

from __future__ import annotations

import os

LLM_BASE_URL = "UIRL_LLM_BASE_URL"
"""Variable with the address of an OpenAI-compatible server; not set: there is no judge and no user simulator."""
LLM_API_KEY = "UIRL_LLM_API_KEY"
"""Variable with its key; not set: the server wants none."""


def llm_variables() -> dict[str, str]:
    """Return the two variables as far as they are set here; empty without an address."""
    if not os.environ.get(LLM_BASE_URL):
        return {}
    return {name: os.environ[name] for name in (LLM_BASE_URL, LLM_API_KEY) if os.environ.get(name)}

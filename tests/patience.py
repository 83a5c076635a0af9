"""How long a test waits for what should take none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds after which a test gives up. They pass where something is broken, and in no other case: a machine on which
other programs run may take thirty times as long as a quiet one."""


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.001)

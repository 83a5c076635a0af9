from collections.abc import AsyncIterator

import pytest

from tests.serving.worlds import CLIENTS


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    """Clients close on the loop they were used on; one that is left to the collector complains later."""
    yield
    while CLIENTS:
        await CLIENTS.pop().close()

"""The door to the server, for callers that have not imported its packages yet."""

from __future__ import annotations

from collections.abc import Callable

from uirl.environments.remote.server.settings import ServerSettings
from uirl.errors import ConfigError


def serve_environment(settings: ServerSettings, say: Callable[[str], None] = print) -> None:
    """Serves an environment until the process is told to stop.

    Raises ConfigError where the packages of a server are missing, the environment does not exist or the port is taken.
    """
    try:
        import websockets  # noqa: F401  uvicorn speaks WebSocket through it, and says so only when it runs

        from uirl.environments.remote.server.app import serve
    except ImportError as error:
        raise ConfigError(f"a server needs more packages ({error}): pip install 'uirl[server]'") from error
    serve(settings, say=say)

"""Routes about the server itself."""

from __future__ import annotations

from fastapi import APIRouter, Response

from uirl.environments.remote.server.sessions import Sessions


class Health:
    """Whether the server lives, and its numbers."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        router.add_api_route("/health", self.health, methods=["GET"])
        router.add_api_route("/metrics", self.metrics, methods=["GET"])
        return router

    async def health(self) -> dict[str, str]:
        """Return whether the server answers; open to everybody, and says no more."""
        return {"status": "healthy"}

    async def metrics(self) -> Response:
        """Return numbers for Prometheus."""
        gauges = {
            "uirl_sessions_active": ("Sessions that hold an environment.", float(len(self.sessions.active))),
            "uirl_instances_warm": ("Environments that wait for a session.", float(self.sessions.warm)),
            "uirl_sessions_capacity": ("Sessions at a time.", float(self.sessions.settings.sessions)),
        }
        return Response(self.sessions.counters.text(gauges), media_type="text/plain; version=0.0.4")

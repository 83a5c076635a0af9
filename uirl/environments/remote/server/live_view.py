"""A page for people: every session's last picture and how it goes. Read-only."""

from __future__ import annotations

import secrets
from html import escape

from fastapi import APIRouter, Request, Response

from uirl.environments.remote.protocol.native import LiveOverview, SessionSummary
from uirl.environments.remote.protocol.pictures import media_type
from uirl.environments.remote.server.access import may_grade
from uirl.environments.remote.server.native import answer, describe_lease
from uirl.environments.remote.server.problems import NoSession
from uirl.environments.remote.server.sessions import Sessions
from uirl.runtime.assets import read_asset

_PAGE = "live_view.html"
"""Beside this file; `__NAME__` and `__NONCE__` stand for what each answer fills in."""


class LiveView:
    """The page, and what it asks for."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        router.add_api_route("/view", self.page, methods=["GET"])
        router.add_api_route("/view/sessions", self.listing, methods=["GET"])
        router.add_api_route("/view/screens/{number}", self.screen, methods=["GET"])
        return router

    async def page(self) -> Response:
        nonce = secrets.token_urlsafe(12)
        page = read_asset(__package__, _PAGE)
        page = page.replace("__NONCE__", nonce).replace("__NAME__", escape(self.sessions.settings.environment))
        policy = (
            f"default-src 'none'; img-src 'self'; connect-src 'self'; style-src 'nonce-{nonce}'; "
            f"script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "cache-control": "no-store"}
        return Response(page, media_type="text/html", headers=headers)

    async def listing(self, request: Request) -> Response:
        """Return the sessions without their ids; what they earned for graders alone."""
        leases = [describe_lease(lease, graded=may_grade(request)) for lease in self.sessions.active]
        for fields in leases:
            fields.pop("session", None)
        sessions = [SessionSummary.model_construct(**fields) for fields in leases]
        return answer(LiveOverview.model_construct(sessions=sessions, capacity=self.sessions.settings.sessions))

    async def screen(self, number: int) -> Response:
        """Return the last picture of a session."""
        for lease in self.sessions.active:
            if lease.number == number and lease.picture is not None:
                data = lease.picture.data
                headers = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
                return Response(data, media_type=media_type(data), headers=headers)
        raise NoSession("no such session, or it shows no picture")

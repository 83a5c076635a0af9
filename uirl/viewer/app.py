"""The routes: what the pages ask for, as JSON, pictures, streams and files."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from uirl.errors import UirlError
from uirl.http.guard import Guard, Refusal
from uirl.images import media_type
from uirl.runtime.limits import InputError, Limits, read_json, shown
from uirl.storage import clean_run_name
from uirl.storage.database import StoreBusy
from uirl.storage.labels import fields_of, read_sheet, write_sheet
from uirl.viewer.access import Access
from uirl.viewer.episode import episode, mark_of, outline, turn_of, turn_tokens
from uirl.viewer.export import PAGE_POLICY, page_of
from uirl.viewer.files import read_object, read_text
from uirl.viewer.groups import group
from uirl.viewer.listing import line_of as line_of_run
from uirl.viewer.listing import list_of, noted
from uirl.viewer.metrics import charts_of
from uirl.viewer.pictures import Sizes, StoredTurns, fed_data, fed_pictures, small_picture
from uirl.viewer.runs import Indexing, Run, Runs
from uirl.viewer.search import answer, facets, line_of, read_question, whole

STATIC = Path(__file__).parent / "static"
BODY, SHEET = 1 << 16, 32 << 20
"""Bytes of a label and of a sheet at most."""
SMALL_JSON = Limits(size=BODY, items=100, depth=4)
FOREVER = {"cache-control": "private, max-age=31536000, immutable"}
FRESH = {"cache-control": "no-store"}


class NotThere(UirlError):
    """What a request names is not here: answered by 404."""


def create_app(runs: Runs, access: Access) -> Any:
    """Return the ASGI application over these runs, behind its guard."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        indexing = Indexing(runs)
        indexing.start()
        try:
            yield
        finally:
            indexing.stop()
            await run_in_threadpool(runs.close)

    app = Starlette(routes=Api(runs).routes(), lifespan=lifespan)
    app.add_exception_handler(NotThere, lambda _, error: _error(404, error))
    app.add_exception_handler(InputError, lambda _, error: _error(400, error))
    app.add_exception_handler(UirlError, _unreadable)
    app.add_exception_handler(
        Exception, lambda _, error: _error(500, UirlError(f"the viewer failed: {type(error).__name__}: {error}"))
    )
    app.add_exception_handler(404, lambda _, error: _error(404, NotThere("there is no such page; expected /api/...")))
    app.add_exception_handler(405, lambda _, error: _error(405, NotThere("this address does not take that method")))
    rules = access.rules(SHEET)
    app.add_exception_handler(Refusal, lambda _, refusal: rules.answer(refusal))  # type: ignore[arg-type]
    return Guard(WholeIds(app), rules)


def _unreadable(request: Request, error: Exception) -> Response:
    """Return that something is not there or, where it is busy or was to be written, that it did not work now."""
    read = request.method in ("GET", "HEAD") and not isinstance(error, StoreBusy)
    return _error(404 if read else 503, error)


class Api:
    """What each route answers. Sync methods run on threads: they read files."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def routes(self) -> list[BaseRoute]:
        """Return the routes. Ids may hold slashes, so what stands behind them is matched first."""
        one = "/api/runs/{run}/trajectories/{id:path}"
        return [
            Route("/api/runs", self.list_runs),
            Route("/api/runs/{run}", self.show_run),
            Route("/api/runs/{run}/metrics", self.metrics),
            Route("/api/runs/{run}/metrics.csv", self.metrics_csv),
            Route("/api/runs/{run}/facets", self.facets),
            Route("/api/runs/{run}/labels.csv", self.labels, methods=["GET"]),
            Route("/api/runs/{run}/labels.csv", self.import_labels, methods=["POST"]),
            Route("/api/runs/{run}/images/{hash}", self.image),
            Route("/api/runs/{run}/images/{hash}/small", self.image),
            Route("/api/runs/{run}/fed/{id:path}/{turn}/{place}.png", self.fed),
            Route("/api/runs/{run}/trajectories", self.trajectories),
            Route("/api/runs/{run}/groups/{group:path}", self.group),
            Route(f"{one}/turns/{{turn}}", self.turn),
            Route(f"{one}/tokens", self.tokens),
            Route(f"{one}/export.html", self.export_page),
            Route(f"{one}/label", self.put_label, methods=["PUT"]),
            Route(f"{one}/label", self.remove_label, methods=["DELETE"]),
            Route(one, self.trajectory),
            Mount("/static", StaticFiles(directory=STATIC, check_dir=False)),
            Route("/{path:path}", self.page),
        ]

    def page(self, request: Request) -> Response:
        """Return the page itself; addresses below /api that no route has are errors."""
        if request.url.path.startswith("/api/") or not (STATIC / "index.html").is_file():
            raise NotThere(f"there is nothing at {shown(request.url.path)}")
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    def list_runs(self, request: Request) -> Response:
        return _json({"runs": list_of(self._runs.all())})

    def show_run(self, request: Request) -> Response:
        run = self._run(request)
        problems: list[str] = []
        shown: dict[str, Any] = {"config": "", "summary": None, "versions": None, "charts": []}
        with noted(problems):
            shown["config"] = read_text(run.config_path)
        with noted(problems):
            shown["summary"] = read_object(run.directory.summary_path)
        with noted(problems):
            shown["versions"] = run.store.origins() if run.has_store else None
        with noted(problems):
            shown["charts"] = charts_of(run.curves.names())
        line = line_of_run(run)
        every = dict.fromkeys([*filter(None, [line["problem"]]), *problems])
        return _json({**line, **shown, "problem": "; ".join(every) or None})

    def metrics(self, request: Request) -> Response:
        since = _whole(request, "since")
        return _json(self._run(request).curves.read(since, _whole(request, "sample") == 1).to_dict())

    def metrics_csv(self, request: Request) -> Response:
        run = self._run(request)
        return StreamingResponse(run.curves.csv(), headers=_kept_as(f"{run.key}-metrics.csv"), media_type="text/csv")

    def facets(self, request: Request) -> Response:
        run = self._run(request)
        return _json(facets(run.index) if run.has_store else {})

    def trajectories(self, request: Request) -> Response:
        run = self._run(request)
        question = read_question(dict(request.query_params))
        if not run.has_store:
            return _json({"rows": [], "next": None, "count": 0, "indexed": {"done": 0, "total": 0}})
        index = run.index
        index.catch_up()
        _, worded, total = index.size
        found = answer(index, question) | {"indexed": {"done": worded, "total": total}}
        if not question.conditions and question.words is None:
            found["count"] = total  # whatever is indexed yet
        return _json(found)

    def trajectory(self, request: Request) -> Response:
        run = self._run(request)
        id = _id(request)
        return _json(outline(run, id, self._row(run, id)))

    def turn(self, request: Request) -> Response:
        run, index = self._run(request), whole("turn", request.path_params["turn"])
        turns = self._turns(request, index)
        return _json(turn_of(run, _id(request), turns, index))

    def tokens(self, request: Request) -> Response:
        run, index = self._run(request), _whole(request, "turn")
        context = request.query_params.get("context", "0") == "1"
        turns = self._turns(request, index)
        return _json(turn_tokens(run, _id(request), turns, index, context=context))

    def group(self, request: Request) -> Response:
        run, name = self._run(request), _id(request, "group")
        found = group(run, name)
        if found is None:
            raise NotThere(f"there is no group {shown(name)} in the run {run.key}")
        return _json(found)

    def export_page(self, request: Request) -> Response:
        run, id = self._run(request), _id(request)
        shown_episode = episode(run, id, self._row(run, id))
        headers = _kept_as(f"{clean_run_name(id)[:80]}.html") | {"content-security-policy": PAGE_POLICY}

        def pieces() -> Iterator[bytes]:
            for piece in page_of(shown_episode, run.store):
                run.used = time.monotonic()  # a slow reader takes long
                yield piece

        return StreamingResponse(pieces(), headers=headers, media_type="text/html; charset=utf-8")

    def image(self, request: Request) -> Response:
        data = self._run(request).store.image(request.path_params["hash"])
        data = small_picture(data) if request.url.path.endswith("/small") else data
        return Response(data, headers=FOREVER, media_type=media_type(data))

    def fed(self, request: Request) -> Response:
        run = self._run(request)
        turn, place = (whole(name, request.path_params[name]) for name in ("turn", "place"))
        pictures = fed_pictures(self._turns(request, turn), turn, Sizes(run.store))
        if place >= len(pictures):
            raise NotThere(f"got picture {place}, the turn has {len(pictures)}")
        data = fed_data(run.store, pictures[place])
        kept = request.query_params.get("of") == mark_of(pictures[place])
        return Response(data, headers=FOREVER if kept else FRESH, media_type=media_type(data))

    async def put_label(self, request: Request) -> Response:
        body = await _body(request, BODY)
        fields = fields_of(read_json(body, SMALL_JSON, "the label"))
        return await run_in_threadpool(self._change_label, request, fields)

    def _change_label(self, request: Request, fields: Mapping[str, Any]) -> Response:
        """Change the fields that were sent; the others stay, whoever wrote them."""
        run, id = self._run(request), _id(request)
        _check_step(fields.get("error_step"), self._row(run, id)["turns"])
        return _json(run.labels.change(id, fields).to_dict())

    def remove_label(self, request: Request) -> Response:
        run, id = self._run(request), _id(request)
        return _json({"removed": run.labels.remove(id)})

    def labels(self, request: Request) -> Response:
        run = self._run(request)
        sheet = write_sheet(run.labels.all()).encode("utf-8", "replace")
        return Response(sheet, headers=_kept_as(f"{run.key}-labels.csv"), media_type="text/csv")

    async def import_labels(self, request: Request) -> Response:
        body = await _body(request, SHEET)
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(
                f"the sheet is no UTF-8: {error.reason} at byte {error.start}; save it as CSV UTF-8"
            ) from None
        return await run_in_threadpool(self._import, request, text)

    def _import(self, request: Request, text: str) -> Response:
        run = self._run(request)
        found = read_sheet(text)
        index = run.index
        turns = {id: line["turns"] for id in found if (line := line_of(index, id)) is not None}
        for id in turns:
            _check_step(found[id].error_step, turns[id], f"{shown(id)}: ")
        unknown = [id for id in found if id not in turns]
        run.labels.set_many({id: label for id, label in found.items() if id in turns})
        return _json({"read": len(found) - len(unknown), "unknown": unknown})

    def _run(self, request: Request) -> Run:
        key = request.path_params["run"]
        run = self._runs.get(key)
        if run is None:
            raise NotThere(f"there is no run {shown(key)}; /api/runs lists them")
        run.used = time.monotonic()
        return run

    def _turns(self, request: Request, index: int) -> StoredTurns:
        """Return the turns of the trajectory that a request names. Raises NotThere where turn `index` is not there."""
        run, id = self._run(request), _id(request)
        self._row(run, id)
        turns = StoredTurns(run.store, id, run.store.count_turns(id))
        if index >= len(turns):
            raise NotThere(f"got turn {index}, the trajectory has {len(turns)}")
        return turns

    def _row(self, run: Run, id: str) -> dict[str, Any]:
        """Return the line of a trajectory. Raises NotThere for an unknown id."""
        row = line_of(run.index, id)
        if row is None:
            raise NotThere(f"there is no trajectory {shown(id)} in the run {run.key}")
        return row


def _check_step(step: int | None, turns: int, where: str = "") -> None:
    if step is not None and step >= turns:
        raise InputError(f"{where}got error_step={step}, the trajectory has {turns} turns, counted from 0")


class WholeIds:
    """ASGI middleware: a slash that was sent as %2F belongs to an id, and parts no address."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on, with those slashes as `_SLASH`."""
        raw = scope.get("raw_path") or b""
        if scope["type"] == "http" and raw:
            parts = re.split("%2f", raw.decode("ascii", "replace"), flags=re.IGNORECASE)
            scope = {**scope, "path": _SLASH.join(map(unquote, parts))}
        await self._app(scope, receive, send)


_SLASH = "\udc2f"
"""Stands for a slash of an id: no address has it, as it is half a character."""


def _id(request: Request, name: str = "id") -> str:
    """Return the id of an address. Those that are dots have a NUL before them, as browsers take dots out of
    addresses."""
    id = str(request.path_params[name]).replace(_SLASH, "/")
    return id[1:] if id in ("\0.", "\0..") else id


def _kept_as(file: str) -> dict[str, str]:
    """Return the headers of an answer that is saved as a file of this name."""
    return {**FRESH, "content-disposition": f'attachment; filename="{file}"'}


def _whole(request: Request, name: str) -> int:
    return whole(name, request.query_params.get(name, "0"))


async def _body(request: Request, most: int) -> bytes:
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > most:
            raise InputError(f"got more than {most} bytes; expected fewer")
    return bytes(parts)


def _json(value: Any) -> Response:
    """Return JSON in ASCII: half a surrogate pair has no UTF-8, and NaN, which a record may hold, no JSON (null)."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    return Response(text.encode("ascii"), headers=FRESH, media_type="application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value


def _error(status: int, error: Exception) -> Response:
    answer = _json({"error": str(error)})
    answer.status_code = status
    return answer

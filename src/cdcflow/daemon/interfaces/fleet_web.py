"""The page and the API of a fleet as an ASGI application. It is read-only.

Guard            Host header, size of a body, headers that tell a browser what it must not do
  └─ routes      /healthz /readyz /metrics     open
                 / /fleet.js …                 open: the page without any data
                 /api/v1/fleet …               role read
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cdcflow.daemon.interfaces.web import PageSessions, page_file
from cdcflow.fleet import metrics as fleet_metrics
from cdcflow.fleet.openapi import description
from cdcflow.fleet.pipelines import Pipeline, counts, pipelines
from cdcflow.fleet.watch import FleetWatch
from cdcflow.http import metrics
from cdcflow.http.access import Access, Caller
from cdcflow.http.callers import reading, session_of
from cdcflow.http.responses import Endpoint, as_json, guard_routes
from cdcflow.version import __version__

FLEET_PAGE = Path(__file__).parent / "fleet_page"
_FILES = {"index.html": "text/html", "fleet.css": "text/css", "fleet.js": "text/javascript"}
_OF_THE_DAEMONS_PAGE = {"page.css": "text/css", "words.js": "text/javascript", "session.js": "text/javascript"}


@dataclass(frozen=True, slots=True)
class FleetInterfaces:
    """The data that the API shows, and the callers to whom it does."""

    watch: FleetWatch
    access: Access

    def pipelines(self) -> list[Pipeline]:
        return pipelines(self.watch.members.current(), time.time())


def application(doors: FleetInterfaces, names: Collection[str]) -> ASGIApp:
    """Return the application. `names`: the host names that requests may use, other than addresses."""
    sessions = PageSessions(doors.access)
    routes = [
        *(Route(f"/{name}".removesuffix("index.html"), page_file(name, k, FLEET_PAGE)) for name, k in _FILES.items()),
        *(Route(f"/{name}", page_file(name, kind)) for name, kind in _OF_THE_DAEMONS_PAGE.items()),
        *(Route(path, endpoint) for path, endpoint in _open(doors).items()),
        *(Route(path, reading(doors.access, endpoint)) for path, endpoint in _restricted_routes(doors).items()),
        Route("/api/v1/session", sessions.open, methods=["POST"]),
        Route("/api/v1/session", sessions.close, methods=["DELETE"]),
    ]
    return guard_routes(routes, names)


def overview(found: list[Pipeline], watch: FleetWatch, filters: Mapping[str, str]) -> dict[str, Any]:
    """Return all pipelines that the filters (`state`, `level`, `name`) select, as JSON-able values."""
    shown = [one.row() for one in found if _is_selected(one, filters)]
    outages = [asdict(one) for one in watch.members.outages()]
    return {"pipelines": shown, "counts": counts(found), "outages": outages, "read": watch.has_read}


def _is_selected(one: Pipeline, filters: Mapping[str, str]) -> bool:
    is_named = filters.get("name", "").lower() in one.name.lower()
    return is_named and filters.get("state", one.state) == one.state and filters.get("level", one.level) == one.level


def _open(doors: FleetInterfaces) -> dict[str, Endpoint]:
    async def alive(request: Request) -> Response:
        return as_json({"status": "alive"})

    async def ready(request: Request) -> Response:
        is_ready = doors.watch.has_read
        return as_json({"status": "ready" if is_ready else "reading"}, 200 if is_ready else 503)

    async def metrics_page(request: Request) -> Response:
        def text() -> str:
            status = fleet_metrics.status(doors.pipelines(), doors.watch.members.outages())
            return metrics.exposition(status, fleet_metrics.LISTED)

        return Response(await run_in_threadpool(text), headers={"Content-Type": metrics.CONTENT_TYPE})

    return {"/healthz": alive, "/readyz": ready, "/metrics": metrics_page}


def _restricted_routes(doors: FleetInterfaces) -> dict[str, Endpoint]:
    async def fleet(request: Request) -> Response:
        found = await run_in_threadpool(doors.pipelines)
        caller: Caller = request.state.caller
        who = {"name": caller.name, "session": session_of(request) is not None, "needs_token": doors.access.needs_token}
        about = {"version": __version__, "now": round(time.time(), 1), "caller": who}
        return as_json({**overview(found, doors.watch, dict(request.query_params)), **about})

    async def pipeline(request: Request) -> Response:
        name = request.path_params["name"]
        for one in await run_in_threadpool(doors.pipelines):
            if one.name == name:
                return as_json(one.details())
        raise HTTPException(404, "no pipeline of this name is in the fleet")

    async def api(request: Request) -> Response:
        return as_json(description())

    return {"/api/v1/fleet": fleet, "/api/v1/fleet/{name}": pipeline, "/api/v1/openapi.json": api}

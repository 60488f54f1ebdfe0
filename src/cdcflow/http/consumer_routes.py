"""Named consumers of a log over HTTP: create them, read by long poll or as server-sent events, commit."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cdcflow.errors import CdcflowError
from cdcflow.http import responses
from cdcflow.http.access import Access
from cdcflow.http.callers import body_of, caller_with, reading
from cdcflow.http.consumers import LIMIT, LIMIT_MAX, WAIT_MAX_S, ConsumerDoor, ConsumerSession
from cdcflow.http.query_routes import count_of
from cdcflow.http.responses import as_json

LOOK_EVERY_S = 0.25
STILL_THERE_EVERY_S = 15.0


def consumer_routes(access: Access, consumers: Callable[[], ConsumerDoor]) -> list[Route]:
    """Return the routes of `/api/v1/consumers`. `consumers` may raise HTTPException if there are no consumers."""

    async def list_consumers(request: Request) -> Response:
        return as_json({"consumers": await run_in_threadpool(consumers().list_consumers)})

    async def create(request: Request) -> Response:
        asked = await body_of(request)
        caller = await caller_with("operate", access, request, "creating a consumer")
        return as_json(await run_in_threadpool(consumers().create, asked, f"HTTP, token {caller.name}"))

    async def commit(request: Request) -> Response:
        asked = await body_of(request)
        await caller_with("consume", access, request, "a commit")
        name = request.path_params["name"]
        return as_json(await run_in_threadpool(consumers().commit, name, asked.get("cursor")))

    async def changes(request: Request) -> Response:
        asked, name = request.query_params, request.path_params["name"]
        limit = min(count_of(asked.get("limit"), "rows") or LIMIT, LIMIT_MAX)
        wait_s = _seconds(asked.get("wait"))
        after = request.headers.get("last-event-id") or asked.get("after")
        session = await run_in_threadpool(consumers().open, name, after, limit)
        if "text/event-stream" in request.headers.get("accept", ""):
            first = await _first(session)
            return StreamingResponse(_events(session, first), media_type="text/event-stream")
        try:
            found = await _poll(request, session, wait_s)
            return as_json({"consumer": name, "changes": found, "cursor": session.cursor})
        finally:
            session.close()

    return [
        Route("/api/v1/consumers", reading(access, list_consumers), methods=["GET"]),
        Route("/api/v1/consumers", create, methods=["POST"]),
        Route("/api/v1/consumers/{name}/changes", reading(access, changes), methods=["GET"]),
        Route("/api/v1/consumers/{name}/commit", commit, methods=["POST"]),
    ]


async def _first(session: ConsumerSession) -> list[dict[str, Any]]:
    """Return the first changes. An error at this point becomes a normal answer, instead of a stream that breaks off."""
    try:
        return await run_in_threadpool(session.next)
    except BaseException:
        session.close()
        raise


async def _poll(request: Request, session: ConsumerSession, wait_s: float) -> list[dict[str, Any]]:
    """Return the next changes, waiting at most `wait_s` seconds for some."""
    until = time.monotonic() + wait_s
    while True:
        found = await run_in_threadpool(session.next)
        if found or time.monotonic() >= until or await request.is_disconnected():
            return found
        await asyncio.sleep(LOOK_EVERY_S)


async def _events(session: ConsumerSession, found: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Return changes as server-sent events, until the client disconnects."""
    try:
        heard = time.monotonic()
        yield ": a consumer of the log\n\n"
        while True:
            for change in found:
                yield f"id: {change['cursor']}\nevent: change\ndata: {json.dumps(change)}\n\n"
            if found:
                heard = time.monotonic()
            else:
                await asyncio.sleep(LOOK_EVERY_S)
            if time.monotonic() - heard > STILL_THERE_EVERY_S:
                heard = time.monotonic()
                yield ": still there\n\n"
            try:
                found = await run_in_threadpool(session.next)
            except CdcflowError as error:
                yield f"event: problem\ndata: {json.dumps(responses.of_error(error))}\n\n"
                return
    finally:
        session.close()


def _seconds(text: str | None) -> float:
    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found <= WAIT_MAX_S:
        raise HTTPException(400, f"wait must be a number of seconds up to {WAIT_MAX_S:.0f}")
    return found

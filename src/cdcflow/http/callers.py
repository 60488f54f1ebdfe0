"""The caller of an HTTP request, and the request's body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cdcflow.config import Role
from cdcflow.http.access import Access, Caller, is_from_our_page, is_json, port_of
from cdcflow.http.responses import Endpoint


def reading(access: Access, endpoint: Endpoint) -> Endpoint:
    """Return an endpoint for callers with the role read; it finds the caller in `request.state.caller`."""

    async def read(request: Request) -> Response:
        request.state.caller = await caller_of(access, request)
        return await endpoint(request)

    return read


async def caller_of(access: Access, request: Request) -> Caller:
    """Return the caller of a request. A cookie counts only if cdcflow's own page sent it.

    Raises:
        HTTPException: 401, the caller is unknown; 429, it sends too many requests.
    """
    session = session_of(request)
    if (
        session is not None
        and not is_from_our_page(headers_of(request), request.url.scheme)
        and _is_from_a_page(request)
    ):
        session = None
    found = await run_in_threadpool(access.caller, request.headers.get("authorization"), session)
    check_rate(access, request, None if found is None or not access.needs_token else found.name)
    if found is None:
        raise HTTPException(401, "this needs a token: send it as Authorization: Bearer …")
    return found


def check_rate(access: Access, request: Request, token: str | None) -> None:
    """Count a request for the token with this name, or for the client's address.

    Raises:
        HTTPException: 429, the caller sends too many.
    """
    host = "" if request.client is None else request.client.host
    caller = f"address {host}" if token is None else f"token {token}"
    if wait_s := access.rate.wait_s(caller):
        raise HTTPException(
            429, f"{caller} sends more requests than it may (requests_per_second_max)", {"Retry-After": str(wait_s)}
        )


def _is_from_a_page(request: Request) -> bool:
    return "origin" in request.headers or "sec-fetch-site" in request.headers


async def writer_of(access: Access, request: Request) -> Caller:
    """Return the caller of an operation, who must use a token, or cdcflow's own page in a session."""
    by_token = "authorization" in request.headers
    if (
        not by_token
        and session_of(request) is not None
        and not is_from_our_page(headers_of(request), request.url.scheme)
    ):
        raise HTTPException(403, "a session counts only for requests of the page itself")
    return await caller_of(access, request)


async def caller_with(role: Role, access: Access, request: Request, what: str) -> Caller:
    """Return the caller of an endpoint that changes state and requires a role.

    Raises:
        HTTPException: 401 or 403.
    """
    caller = await writer_of(access, request)
    if not caller.may(role):
        raise HTTPException(403, may_not(access, caller, what, role))
    return caller


def may_not(access: Access, caller: Caller, what: str, role: Role) -> str:
    if not access.needs_token:
        return f"{what} needs a token, but no token is configured: set {access.setting}, or use the command line"
    return f"{what} needs a token with the role {role}; {caller.name} has the role {caller.role}"


async def body_of(request: Request) -> dict[str, Any]:
    if not is_json(request.headers.get("content-type")):
        raise HTTPException(415, "send the arguments as Content-Type: application/json")
    try:
        found = json.loads(await request.body() or b"{}")
    except ValueError:
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "the body must be one JSON object")
    if "op" in found:
        raise HTTPException(400, "the operation is named in the path, not in the body")
    return found


def session_of(request: Request) -> str | None:
    return request.cookies.get(cookie_of(request))


def cookie_of(request: Request) -> str:
    """Return the name of the session's cookie. Cookies ignore ports, and two daemons on one machine must not overwrite
    each other's."""
    return f"cdcflow_session_{port_of(request.headers.get('host', ''))}"


def headers_of(request: Request) -> Mapping[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}

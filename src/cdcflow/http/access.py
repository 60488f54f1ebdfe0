"""Access over HTTP, and what each caller may do: tokens, the page's sessions, and the origin of a browser's request.

Without configured tokens any client that can reach the address may read, and the settings make sure that only this
machine can. With tokens every request needs one: as `Authorization: Bearer …`, or through a session that the page
opened with one. Tokens are references and are read again at each request, so a rotated one counts at once; their hashes
are compared, in constant time.

A browser sends a session's cookie along with requests that other sites made up (CSRF). The cookie is SameSite=Strict,
but a "site" does not include the port: another server on localhost is the same site. So a request with a cookie must
originate from cdcflow's own page, according to the browser's headers (`Sec-Fetch-Site`, `Origin`).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from cdcflow.config import ROLES, AccessToken, Role, secret
from cdcflow.errors import ConfigurationError
from cdcflow.http.rate_limit import RateLimit

TOKEN_CHARACTERS_MIN = 16
SESSION_S = 12 * 3600.0
SESSIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller, and its role."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        return ROLES.index(role) <= ROLES.index(self.role)


ANYBODY_HERE = Caller("anybody on this machine", "read")


@dataclass(frozen=True, slots=True)
class _LoginSession:
    token: bytes
    ends_at: float


class Access:
    """The tokens of the settings, and the sessions that were opened with them. Safe to use from any thread."""

    def __init__(
        self,
        tokens: Sequence[AccessToken] = (),
        clock: Callable[[], float] = time.monotonic,
        setting: str = "service.tokens",
        requests_per_second_max: float | None = None,
    ) -> None:
        """`setting`: the setting with the tokens, for errors. `requests_per_second_max`: the limit for each caller."""
        self.setting = setting
        self.rate = RateLimit(requests_per_second_max, clock)
        self._tokens = tuple(tokens)
        self._clock = clock
        self._sessions: dict[bytes, _LoginSession] = {}
        self._lock = threading.Lock()
        self._after: Access | None = None

    @property
    def needs_token(self) -> bool:
        return bool(self._tokens) if self._after is None else self._after.needs_token

    def go_on_from(self, before: Access) -> None:
        """Adopt the sessions of other settings' tokens; a session counts as long as its token does."""
        with before._lock:
            self._sessions = dict(before._sessions)

    def give_way_to(self, after: Access) -> None:
        """Use other settings' tokens from now on.

        A revoked token must open nothing, not even while a server that still knows it is ending.
        """
        self._after = after

    def check(self) -> None:
        """Check that every token is available and long enough.

        Raises:
            ConfigurationError: a token is unavailable, or too short.
        """
        for one in self._tokens:
            if len(secret(one.token) or "") < TOKEN_CHARACTERS_MIN:
                raise ConfigurationError(
                    f"the token {one.name} of {self.setting} has fewer than {TOKEN_CHARACTERS_MIN} characters",
                    remedy="create one that cannot be guessed: openssl rand -hex 24",
                )

    def caller(self, authorization: str | None, session: str | None) -> Caller | None:
        """Return the caller of this request; `None` if it is unknown. A Bearer token counts before a session."""
        if self._after is not None:
            return self._after.caller(authorization, session)
        if not self._tokens:
            return ANYBODY_HERE
        if authorization is not None:
            return self._holder(_bearer(authorization))
        return None if session is None else self._in_session(session)

    def open_session(self, token: str) -> str | None:
        """Return the secret of a new session for the holder of this token; `None` if the token is invalid."""
        if self._after is not None:
            return self._after.open_session(token)
        digest = _digest(token)
        if self._holder(digest) is None:
            return None
        made = secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            self._sessions = {k: s for k, s in self._sessions.items() if s.ends_at > now}
            while len(self._sessions) >= SESSIONS_MAX:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[_digest(made)] = _LoginSession(digest, now + SESSION_S)
        return made

    def close_session(self, session: str) -> None:
        if self._after is not None:
            self._after.close_session(session)
        with self._lock:
            self._sessions.pop(_digest(session), None)

    def _in_session(self, session: str) -> Caller | None:
        with self._lock:
            found = self._sessions.get(_digest(session))
        # Its token is checked again: a session must not outlive a revoked token.
        return None if found is None or found.ends_at <= self._clock() else self._holder(found.token)

    def _holder(self, digest: bytes) -> Caller | None:
        found: Caller | None = None
        for one in self._tokens:  # all of them, so that the time taken does not reveal which one nearly fits
            if hmac.compare_digest(_current_hash(one), digest):
                found = Caller(one.name, one.role)
        return found


def _current_hash(token: AccessToken) -> bytes:
    """Return the hash of a token's current value. If the value is unavailable or too short, return a random value that
    matches nothing."""
    try:
        text = secret(token.token) or ""
    except ConfigurationError:
        text = ""
    return _digest(text) if len(text) >= TOKEN_CHARACTERS_MIN else secrets.token_bytes(32)


def _bearer(authorization: str) -> bytes:
    scheme, _, token = authorization.partition(" ")
    return _digest(token.strip() if scheme.lower() == "bearer" else "")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def is_from_our_page(headers: Mapping[str, str], scheme: str) -> bool:
    """Whether the browser reports that cdcflow's own page made this request. `headers` have names in lower case."""
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = headers.get("origin")
    if origin is not None:
        # A TLS proxy forwards the request without TLS.
        return origin in (f"{scheme}://{headers.get('host', '')}", f"https://{headers.get('host', '')}")
    return site == "same-origin"


def is_json(content_type: str | None) -> bool:
    """Whether a body is declared as JSON: a form of another site cannot declare that without a preflight request."""
    return content_type is not None and content_type.partition(";")[0].strip().lower() == "application/json"


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this server: by address, or by one of `names`.

    A web page in a user's browser can send requests here under its own host name that resolves to 127.0.0.1 (DNS
    rebinding). So a request must name this server by an address, `localhost`, or a name from the settings.
    """
    name = host.lower().rpartition(":")[0] if _has_port(host) else host.lower()
    name = name.strip("[]")
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def port_of(host: str) -> str:
    """Return the port of a Host header; "" if it has no port."""
    return host.rpartition(":")[2] if _has_port(host) else ""


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and (host.count(":") == 1 or "]:" in host)

"""Tokens of REST catalogs, by OAuth2's client credentials (RFC 6749, section 4.4).

PyIceberg requests a token once, and again after the catalog has refused it; this also requests one before it expires.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import requests
from pyiceberg.catalog.rest.auth import AuthManager
from pyiceberg.exceptions import OAuthError, ServiceUnavailableError

from cdcflow.tables.local.iceberg_settings import OAuth

TIMEOUT_S = (10.0, 60.0)
"""Time limits of requests: for connecting to a server, and between two parts of its answer."""

RENEWED_AFTER = 0.8
"""After this part of a token's lifetime the next one is requested."""


class Tokens(AuthManager):
    """The current token of a REST catalog. May be used from several threads."""

    def __init__(self, oauth: OAuth, clock: Callable[[], float] = time.monotonic) -> None:
        self._oauth = oauth
        self._clock = clock
        self._token = oauth.token
        self._due = 0.0 if oauth.credential is not None else float("inf")
        self._lock = threading.Lock()

    def auth_header(self) -> str:
        with self._lock:
            if self._clock() >= self._due:
                self._request()
            return f"Bearer {self._token}"

    def renew(self) -> bool:
        """Request a new token, because the catalog does not accept the current one. Return False if there is no
        credential with which to request one."""
        with self._lock:
            if self._oauth.credential is not None:
                self._request()
        return self._oauth.credential is not None

    def _request(self) -> None:
        """Request a token.

        Raises:
            OAuthError: it is not granted.
            ServiceUnavailableError: the server cannot grant it at present.
        """
        first, colon, rest = (self._oauth.credential or "").partition(":")
        form = {"grant_type": "client_credentials", **self._oauth.more}
        form |= {"client_id": first, "client_secret": rest} if colon else {"client_secret": first}
        # A redirect would send the secret elsewhere.
        answer = requests.post(self._oauth.server, data=form, timeout=TIMEOUT_S, allow_redirects=False)
        if answer.status_code >= 500 or answer.status_code == 429:
            raise ServiceUnavailableError(f"the token server answers {answer.status_code}")
        try:
            found = answer.json()
            self._token, lifetime = str(found["access_token"]), found.get("expires_in")
        except (ValueError, TypeError, KeyError):
            raise OAuthError(f"the token server answers {answer.status_code} without a token") from None
        self._due = self._clock() + RENEWED_AFTER * float(lifetime) if lifetime else float("inf")

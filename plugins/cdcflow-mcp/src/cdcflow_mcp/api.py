"""The HTTP API of one daemon: GET requests with a token, which is never sent to the target of a redirect."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 30.0
Value = str | int | bool | None


class ApiError(Exception):
    """The daemon refused a request, or did not answer it. The message has what the daemon said, never the token."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect: the token is for one host."""


class Api:
    """Queries the daemon at `url`, such as https://shop.internal:8079. `token_file` is read at each request, so a
    replaced token counts at once; None: the daemon has no tokens. `ca`: a file with the authority of its certificate.
    """

    def __init__(self, url: str, token_file: Path | None = None, ca: Path | None = None) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"{url} is not the address of a daemon: give https://HOST:PORT")
        self._url = url.rstrip("/")
        self._token_file = token_file
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        self._opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))

    def get(self, path: str, query: Mapping[str, Value | Sequence[str]] | None = None) -> Any:
        """The answer to a request below /api/v1, from JSON. A member of `query` is sent only if it has a value.

        Raises:
            ApiError: the daemon refuses it, with its reason and remedy, or does not answer.
        """
        sent = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        address = f"{self._url}/api/v1/{path}" + (f"?{urllib.parse.urlencode(sent, doseq=True)}" if sent else "")
        headers = {"Accept": "application/json", **self._authorization()}
        request = urllib.request.Request(address, headers=headers)  # noqa: S310  http or https, see `__init__`
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise ApiError(_refusal(error)) from None
        except (OSError, ValueError) as error:
            raise ApiError(f"the daemon at {self._url} did not answer: {type(error).__name__}") from None

    def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}
        except OSError as error:
            raise ApiError(f"the token's file {self._token_file} cannot be read: {error.strerror}") from None


def _text(value: Value | Sequence[str]) -> str | list[str]:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int) or value is None else list(value)


def _refusal(error: urllib.error.HTTPError) -> str:
    """What the daemon said: problem details (RFC 9457) with its remedy."""
    try:
        problem = json.load(error)
        return "\n".join(str(problem[name]) for name in ("detail", "remedy") if problem.get(name))
    except (ValueError, KeyError, AttributeError, TypeError):
        return f"the daemon answered {error.code} {error.reason}"

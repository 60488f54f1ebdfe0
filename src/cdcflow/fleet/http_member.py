"""Query a daemon's report over HTTP."""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from cdcflow.config import FleetMember, secret
from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable
from cdcflow.fleet.report import REPORT_BYTES_MAX, MemberReport, Unreadable

PATH = "/api/v1/report"
ANSWER_WITHIN_S = 5.0


class HttpMember:
    """A daemon with `service.listen`. Used by one thread at a time."""

    def __init__(self, settings: FleetMember, every_s: float) -> None:
        self.name = settings.url
        self.pipeline = settings.name
        self._settings = settings
        self._every_s = every_s

    def report(self) -> MemberReport:
        """Return the daemon's report.

        Raises:
            SourceUnavailable: it does not answer.
            ConfigurationError: its answer is not a report, or the token or the certificate is wrong.
        """
        try:
            report = MemberReport.from_bytes(self._answer())
        except Unreadable as error:
            raise ConfigurationError(f"the report of {self.name} cannot be read: {error}") from None
        page = report.page or self._settings.url
        return replace(report, name=self._settings.name, every_s=self._every_s, page=page)

    def _answer(self) -> bytes:
        try:
            with closing(self._connection()) as connection:
                connection.request("GET", urlsplit(self._settings.url).path.rstrip("/") + PATH, headers=self._headers())
                answer = connection.getresponse()
                content = answer.read(REPORT_BYTES_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or getattr(error, "reason", None) or type(error).__name__
            raise SourceUnavailable(f"{self.name} does not answer: {why}") from None
        if answer.status != http.client.OK:
            raise _refusal(self.name, answer.status, content)
        return content

    def _connection(self) -> http.client.HTTPConnection:
        place = urlsplit(self._settings.url)
        host = place.hostname or ""
        if place.scheme == "http":
            return http.client.HTTPConnection(host, place.port, timeout=ANSWER_WITHIN_S)
        try:
            context = ssl.create_default_context(cafile=self._settings.ca)
        except OSError as error:
            raise ConfigurationError(f"members: the ca of {self.name} cannot be used: {error.strerror}") from None
        return http.client.HTTPSConnection(host, place.port, timeout=ANSWER_WITHIN_S, context=context)

    def _headers(self) -> dict[str, str]:
        token = secret(self._settings.token)
        return {} if token is None else {"Authorization": f"Bearer {token}"}


def _refusal(name: str, code: int, content: bytes) -> CdcflowError:
    if code in (401, 403):
        return ConfigurationError(
            f"{name} refuses this token ({code})", remedy="set members.token to one of its service.tokens"
        )
    if code == 404:
        return ConfigurationError(f"{name} has no report ({code}): it is an older cdcflow, or another program")
    if code == 421:
        return ConfigurationError(
            f"{name} does not answer under this name ({code})", remedy="add the name to its service.hosts"
        )
    return SourceUnavailable(f"{name} answers {code}{_title(content)}")


def _title(content: bytes) -> str:
    try:
        found: Any = json.loads(content)
    except ValueError:
        return ""
    title = found.get("title") if isinstance(found, dict) else None
    return f" ({title[:80]})" if isinstance(title, str) else ""

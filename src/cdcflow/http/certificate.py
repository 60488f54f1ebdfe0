"""The certificate of the HTTP server, which is renewed while the server runs.

Every new connection gets the certificate that is in the files at that time. If the files cannot be used, because a
renewal is half done or went wrong, the previous certificate stays in use, and one event reports the reason.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

from cdcflow.config import ServerTls
from cdcflow.config.certificates import load_certificate
from cdcflow.errors import ConfigurationError

_Stamp = tuple[tuple[int, int, int], ...]


def _no_event(event: str, fields: Mapping[str, object]) -> None:
    """Report nothing."""


class ServerCertificate:
    """The TLS context (1.2 or newer) with the certificate of the settings. Used by the server's event loop only."""

    def __init__(
        self, files: ServerTls, setting: str, on_event: Callable[[str, Mapping[str, object]], None] = _no_event
    ) -> None:
        """Raises ConfigurationError if the files cannot be used. `setting`: the setting that names them."""
        self._files = files
        self._setting = setting
        self._on_event = on_event
        self._stamp = self._current_stamp()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        stamp = self._current_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = self._load()
            except ConfigurationError as error:
                self._on_event("certificate not renewed", {"setting": self._setting, "reason": str(error)})
            else:
                self._on_event("certificate renewed", {"setting": self._setting})
        return self._context

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        load_certificate(context, self._files.cert, self._files.key, self._setting)
        return context

    def _current_stamp(self) -> _Stamp:
        """Return a value that changes when the files do; renewals replace files, or links to them."""
        found = []
        for path in (self._files.cert, self._files.key or self._files.cert):
            try:
                state = path.stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((state.st_mtime_ns, state.st_size, state.st_ino))
        return tuple(found)

"""Connections between a writer and its peers: TCP with TLS, where both sides show a certificate of the same authority.

A process that can write to a peer can change the log, and one that can read from it sees rows: so each side checks the
other's certificate. Without TLS, addresses must be of this machine; the settings check that.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdcflow.config.certificates import load_certificate
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.sinks.quorum.messages import HEAD, Head, MessageKind, as_json, decode, encode
from cdcflow.sinks.quorum.promises import Promise, WriterRefused

SOCKET_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class PeerTls:
    """The certificate of this side, its key, and the authority that signed the other side's."""

    cert: Path
    key: Path | None
    ca: Path

    def context(self, *, is_server: bool, setting: str) -> ssl.SSLContext:
        """Return the TLS context for new connections; the files are read again each time. Raises ConfigurationError if
        they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        load_certificate(context, self.cert, self.key, setting)
        try:
            context.load_verify_locations(self.ca)
        except (OSError, ValueError):
            raise ConfigurationError(
                f"the certificates of the authority in {self.ca} cannot be used",
                remedy=f"correct {setting}.ca: a PEM file that can be read",
                runbook="tls",
            ) from None
        return context


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


class Link:
    """One blocking connection. It raises OSError, and InvariantViolated and ConfigurationError as `messages.decode`
    does."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.name = name
        self._file = sock.makefile("rb", buffering=256 << 10)

    def send(self, kind: MessageKind, name: str = "", payload: bytes = b"", *, epoch: int = 0, number: int = 0) -> None:
        self.sock.sendall(encode(kind, name, payload, epoch=epoch, number=number) + payload)

    def receive(self) -> tuple[Head, str, bytes]:
        """The next message. EOFError if the other side closed the connection."""
        head = decode(self._exactly(HEAD.size), self.name)
        name = self._exactly(head.name_bytes).decode()
        return head, name, self._exactly(head.payload_bytes)

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def _exactly(self, size: int) -> bytes:
        found = self._file.read(size) if size else b""
        if len(found) < size:
            raise EOFError(f"{self.name} closed the connection")
        return found


class PeerLink:
    """A writer's connection to one peer, for requests that are answered one after another.

    Raises:
        SinkUnavailable: the peer cannot be reached, or does not answer in time.
        WriterRefused: it refuses this writer.
    """

    def __init__(self, peer: str, tls: PeerTls | None, timeout_s: float) -> None:
        self.peer = peer
        try:
            sock = socket.create_connection(address_of(peer), timeout_s)
            if tls is not None:
                context = tls.context(is_server=False, setting="log.replicate")
                sock = context.wrap_socket(sock, server_hostname=address_of(peer)[0])
            self.link = Link(sock, f"the peer {peer}")
        except OSError as error:
            raise self._away("connecting to", error) from None

    def ask(self, kind: MessageKind, value: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, and return its answer."""
        self.send(kind, payload=as_json(value or {}))
        return self.answer()

    def send(self, kind: MessageKind, name: str = "", payload: bytes = b"", *, number: int = 0) -> None:
        try:
            self.link.send(kind, name, payload, number=number)
        except OSError as error:
            raise self._away("sending to", error) from None

    def answer(self) -> dict[str, Any]:
        head, payload = self._receive()
        value: dict[str, Any] = json.loads(payload)
        if head.kind is MessageKind.REFUSED:
            raise WriterRefused(promise_of(value), value["why"])
        return value

    def content(self) -> bytes:
        """The next part of a file that was requested; b"" at its end."""
        return self._receive()[1]

    def close(self) -> None:
        self.link.close()

    def _receive(self) -> tuple[Head, bytes]:
        try:
            head, _, payload = self.link.receive()
        except (OSError, EOFError) as error:
            raise self._away("waiting for", error) from None
        return head, payload

    def _away(self, attempt: str, error: Exception) -> SinkUnavailable:
        if isinstance(error, ssl.SSLError):
            reason = f"TLS: {getattr(error, 'verify_message', None) or error.reason or 'the handshake failed'}"
        else:
            reason = str(getattr(error, "strerror", None) or error)
        return SinkUnavailable(f"{attempt} the peer {self.peer}: {reason}", runbook="quorum-lost")


def promise_of(value: Mapping[str, Any]) -> Promise:
    return Promise(value["group"], value["promised"], value["writer"], value["accepted"], value["peers"])

"""A peer: a small process that stores the journals of one log for the daemon that writes it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated
from cdcflow.sinks.quorum.image import ImageFile
from cdcflow.sinks.quorum.links import SOCKET_BYTES, Link, PeerTls, address_of
from cdcflow.sinks.quorum.messages import Head, MessageKind, as_json
from cdcflow.sinks.quorum.peer_store import OpenImage, PeerStore
from cdcflow.sinks.quorum.promises import EpochWriter, WriterRefused

FETCHED_BYTES = 1 << 20
HANDSHAKE_S = 10.0
LOOK_EVERY_S = 0.5
ALIVE_S = 3.0
"""A writer that has sent nothing for this long is not alive: a different writer may begin."""

OnEvent = Callable[[str, Mapping[str, object]], None]


class PeerServer:
    """Serves one peer's folder at one address. `run` blocks until `stop`."""

    def __init__(self, folder: Path, listen: str, tls: PeerTls | None, on_event: OnEvent) -> None:
        """Open the folder and the address. Raises ConfigurationError if either is in use, or a certificate cannot be
        used."""
        if tls is not None:
            tls.context(is_server=True, setting="cdcflow journal-peer")
        self._tls = tls
        self._on_event = on_event
        self._stopping = threading.Event()
        self._store = PeerStore(folder)
        self._socket = _listen_at(listen)
        self._connections: set[socket.socket] = set()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Serve until `stop`. Raises the error after which this peer must start again."""
        promise = self._store.promise
        self._on_event("peer started", {"port": self.port, "promised": promise.promised, "blank": promise.is_blank})
        self._socket.settimeout(LOOK_EVERY_S)
        try:
            while not self._stopping.is_set() and self._store.dead is None:
                with contextlib.suppress(TimeoutError):
                    accepted, address = self._socket.accept()
                    threading.Thread(target=self._serve, args=(accepted, str(address[0])), daemon=True).start()
        finally:
            self._socket.close()
            for connection in list(self._connections):
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._store.close()
        if self._store.dead is not None:
            raise self._store.dead

    def stop(self) -> None:
        """End `run`. Safe in a signal handler."""
        self._stopping.set()

    def _serve(self, accepted: socket.socket, client: str) -> None:
        try:
            accepted.settimeout(HANDSHAKE_S)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._tls is not None:
                context = self._tls.context(is_server=True, setting="cdcflow journal-peer")
                accepted = context.wrap_socket(accepted, server_side=True)
            accepted.settimeout(None)
            self._connections.add(accepted)
            with contextlib.closing(Link(accepted, client)) as link:
                WriterConnection(self._store, link, self._on_event).run()
        except ssl.SSLEOFError:
            pass  # a probe of the port, which sends nothing
        except ssl.SSLError as error:
            self._on_event("client refused", {"client": client, "reason": error.reason})
        except (OSError, EOFError):
            pass  # the writer is gone: it connects again
        except (ValueError, KeyError, TypeError) as error:
            self._on_event("connection ended", {"client": client, "reason": f"not a request: {type(error).__name__}"})
        except CdcflowError as error:
            self._on_event("connection ended", {"client": client, "reason": str(error).splitlines()[0]})
        finally:
            self._connections.discard(accepted)
            accepted.close()


class WriterConnection:
    """One connection: requests one after another, and at the end a stream of changes by a writer that has installed an
    image."""

    def __init__(self, store: PeerStore, link: Link, on_event: OnEvent) -> None:
        self._store = store
        self._link = link
        self._on_event = on_event
        self._writer: EpochWriter | None = None
        self._made: OpenImage | None = None
        self._wanted: list[ImageFile] = []
        self._sizes: dict[str, int] = {}
        self._is_open = True
        self._heard_at = time.monotonic()

    @property
    def is_alive(self) -> bool:
        """Whether the writer at the other end has sent something recently."""
        return self._is_open and time.monotonic() - self._heard_at < ALIVE_S

    def run(self) -> None:
        try:
            self._serve()
        finally:
            self._is_open = False

    def _serve(self) -> None:
        while True:
            head, name, payload = self._link.receive()
            self._heard_at = time.monotonic()
            try:
                self._handle(head, name, payload)
            except WriterRefused as refusal:
                value = {**asdict(refusal.promise), "why": refusal.why}
                self._link.send(MessageKind.REFUSED, payload=as_json(value))
                while head.kind >= MessageKind.CREATE:
                    self._link.receive()  # what follows is not done; closing now could take the refusal back

    def _handle(self, head: Head, name: str, payload: bytes) -> None:
        if head.kind >= MessageKind.CREATE:
            self._change(head, name, payload)
        elif head.kind is MessageKind.CONTENT:
            self._content(name, payload)
        elif head.kind is MessageKind.FETCH:
            self._send_file(name)
        else:
            value = json.loads(payload)
            self._link.send(MessageKind.OK, payload=as_json(self._answer(head.kind, value)))

    def _answer(self, kind: MessageKind, value: dict[str, Any]) -> dict[str, Any]:
        match kind:
            case MessageKind.STATE:
                follows = (other := self._store.session) is not None and other is not self
                is_alive = follows and isinstance(other, WriterConnection) and other.is_alive
                return {"follows": is_alive, **asdict(self._store.promise)}
            case MessageKind.FOUND | MessageKind.FENCE:
                promise = self._store.promise_to(EpochWriter(**value), founding=kind is MessageKind.FOUND)
                self._on_event("epoch promised", {"epoch": promise.promised})
                return asdict(promise)
            case MessageKind.REPORT:
                # The extent first: a promise to yet another writer in between would make this report worthless.
                extent = self._store.extent()
                return {"extent": asdict(extent), **asdict(self._store.promise)}
            case MessageKind.LIST:
                return {"files": [asdict(file) for file in self._store.files()]}
            case MessageKind.INSTALL:
                return {"missing": self._begin_install(value)}
            case MessageKind.INSTALLED:
                return {"was_blank": self._install()}
            case _:
                raise InvariantViolated(f"receiving from {self._link.name}: request {kind} has no meaning here")

    def _begin_install(self, value: dict[str, Any]) -> list[str]:
        self._writer = EpochWriter(**value["writer"])
        self._wanted = [ImageFile(**file) for file in value["files"]]
        self._made, missing = self._store.begin_image(self._writer, self, self._wanted)
        self._sizes = {}
        for name in missing:
            self._made.create(name)
            self._sizes[name] = 0
        return missing

    def _content(self, name: str, payload: bytes) -> None:
        _, made = self._open_install()
        made.append(name, self._sizes[name], payload)
        self._sizes[name] += len(payload)

    def _install(self) -> bool:
        writer, made = self._open_install()
        was_blank = self._store.install(writer, self, made, self._wanted)
        self._on_event("image installed", {"epoch": writer.epoch, "files": len(self._wanted)})
        return was_blank

    def _open_install(self) -> tuple[EpochWriter, OpenImage]:
        if self._writer is None or self._made is None:
            raise InvariantViolated(f"receiving from {self._link.name}: it writes before it has installed an image")
        return self._writer, self._made

    def _change(self, head: Head, name: str, payload: bytes) -> None:
        writer, _ = self._open_install()
        with self._store.changing(writer, self) as image:
            match head.kind:
                case MessageKind.CREATE:
                    image.create(name)
                case MessageKind.APPEND:
                    image.append(name, head.number, payload)
                case MessageKind.TRUNCATE:
                    image.truncate(name, head.number)
                case MessageKind.RENAME:
                    image.rename(name, payload.decode())
                case MessageKind.UNLINK:
                    image.unlink(name)
                case _:
                    image.sync()
        if head.kind is MessageKind.SYNC:
            self._link.send(MessageKind.DURABLE, number=head.number)

    def _send_file(self, name: str) -> None:
        with self._store.path(name).open("rb") as file:
            while block := file.read(FETCHED_BYTES):
                self._link.send(MessageKind.CONTENT, payload=block)
        self._link.send(MessageKind.CONTENT)


def _listen_at(listen: str) -> socket.socket:
    host, port = address_of(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        found.bind((host, port))
        found.listen()
    except OSError as error:
        found.close()
        raise ConfigurationError(
            f"listening at {listen}: {error.strerror or error}",
            remedy="give --listen an address of this machine",
            runbook="settings",
        ) from None
    return found

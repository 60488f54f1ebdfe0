"""A peer of a log's journals in a process: its signals and events."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from cdcflow.daemon.events import event_lines, send_structlog_to
from cdcflow.daemon.signals import obeying_signals
from cdcflow.sinks.quorum.links import PeerTls
from cdcflow.sinks.quorum.peer_server import PeerServer


def tls(cert: Path | None, key: Path | None, ca: Path | None) -> PeerTls | None:
    return None if cert is None or ca is None else PeerTls(cert, key, ca)


def run(folder: Path, listen: str, secured: PeerTls | None, output: TextIO, *, as_json: bool) -> None:
    """Serve until SIGTERM or SIGINT. Raises as `PeerServer`."""
    send_structlog_to(output, as_json=as_json)
    tell = event_lines(as_json=as_json)
    server = PeerServer(folder, listen, secured, tell)
    with obeying_signals(server.stop, tell):
        server.run()

"""`cdcflow journal-peer`: store the latest part of a log for a daemon on another machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cdcflow.cli.options import Json
from cdcflow.config.access import is_loopback
from cdcflow.config.base import is_host_and_port
from cdcflow.errors import ConfigurationError


def journal_peer(
    path: Annotated[Path, typer.Option(help="The peer's folder, for one log; on a local disk.")],
    listen: Annotated[str, typer.Option(help="host:port")] = "127.0.0.1:9470",
    cert: Annotated[Path | None, typer.Option(help="The peer's certificate, in PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key. Default: in --cert.")] = None,
    ca: Annotated[
        Path | None, typer.Option(help="The certificates of the authority that signed the daemon's, in PEM.")
    ] = None,
    json: Json = False,
) -> None:
    """Store the latest part of a log, which is not in the object store yet, for the daemon that writes it.

    The daemon's settings name 3, 5 or 7 of these processes in log.replicate.quorum, each on another machine. It runs
    until SIGTERM or Ctrl-C.
    """
    if not is_host_and_port(listen):
        raise ConfigurationError("--listen must be host:port", remedy="write --listen 0.0.0.0:9470")
    if (cert is None) != (ca is None):
        raise ConfigurationError("TLS needs the peer's certificate and the authority", remedy="give --cert and --ca")
    if cert is None and not is_loopback(listen):
        raise ConfigurationError(
            f"other machines can reach {listen}, and rows would cross the network unencrypted",
            remedy="give --cert, --key and --ca, or listen on 127.0.0.1",
            runbook="tls",
        )
    from cdcflow.daemon import journal_peer as process

    process.run(path, listen, process.tls(cert, key, ca), sys.stdout, as_json=json)

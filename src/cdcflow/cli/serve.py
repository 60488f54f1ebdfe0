"""`cdcflow serve`: collections that programs write to over HTTP."""

from __future__ import annotations

import sys

from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.config.places import check_writable, log_places
from cdcflow.daemon.lean import lean


def serve(config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Accept rows over HTTP until you stop it. SIGTERM or Ctrl-C finishes what was sent, a second one ends at once."""
    lean()
    from cdcflow.daemon import push_process
    from cdcflow.daemon.events import event_lines, send_structlog_to

    settings = load(config)
    check_writable(log_places(settings))
    tell = event_lines(as_json=json)
    send_structlog_to(sys.stdout, as_json=json)
    push_process.serve(settings, tell)

"""`cdcflow publish`: the change log to one topic per table, in Debezium's envelope."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.daemon.lean import lean


def publish(
    config: ConfigPath = DEFAULT_CONFIG,
    once: Annotated[bool, typer.Option("--once", help="Publish up to the end that the log has now, then end.")] = False,
    json: Json = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait for brokers or a log that do not answer at the start, instead of ending."),
    ] = False,
) -> None:
    """Publish changes to Kafka until SIGTERM or Ctrl-C, each exactly once for read_committed readers."""
    lean()
    from cdcflow.daemon import daemon
    from cdcflow.daemon.events import event_lines, send_structlog_to
    from cdcflow.daemon.publish_process import PublishingRun
    from cdcflow.daemon.signals import obeying_signals

    tell = event_lines(as_json=json)
    send_structlog_to(sys.stdout, as_json=json)
    publishing = PublishingRun(config, load(config), tell)
    with (
        daemon.telling_end(tell, "publishing failed"),
        obeying_signals(publishing.stop, tell, lambda: publishing.is_connecting, publishing.hang_up),
    ):
        publishing.run(once=once, wait=wait)

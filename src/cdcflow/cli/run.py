"""`cdcflow run`: the capture daemon."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.config.places import check_writable, log_places
from cdcflow.config.references import check_secrets
from cdcflow.daemon.lean import end_loading, lean
from cdcflow.errors import ConfigurationError

if TYPE_CHECKING:
    from cdcflow.capture.ports.part_readers import Readers


def run(
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
    accept_history_loss: Annotated[
        bool,
        typer.Option(
            "--accept-history-loss",
            help="Abandon the position in the source's log: continue from its present end and read every table again.",
        ),
    ] = False,
    keep_rows: Annotated[
        bool,
        typer.Option(
            "--keep-rows",
            help="With --accept-history-loss: keep the rows of tables that have a key; `cdcflow repair` compares them.",
        ),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="If the source or the log does not answer at the start, wait instead of ending."),
    ] = False,
    no_merge: Annotated[
        bool,
        typer.Option("--no-merge", help="Do not merge, even if the settings have merge.every: another process does."),
    ] = False,
    no_deliver: Annotated[
        bool,
        typer.Option("--no-deliver", help="Do not deliver to targets: another process does (`cdcflow deliver`)."),
    ] = False,
    on: Annotated[
        str | None,
        typer.Option(help="Also have a Spark cluster's executors read tables: spark://host:port, or local[2]."),
    ] = None,
) -> None:
    """Capture changes until you stop it, merge them if the settings have merge.every, and deliver them to targets.

    SIGTERM or Ctrl-C stops at a cut within 10 seconds, a second one at once.
    """
    if keep_rows and not accept_history_loss:
        raise ConfigurationError(
            "--keep-rows determines how to continue where changes were lost",
            remedy="use it together with --accept-history-loss",
        )
    settings = load(config)
    check_writable(log_places(settings))
    if settings.merge.every is not None and not no_merge:  # otherwise only the merge process would report it
        check_secrets(settings.merge.model_dump(include={"catalog", "objects"}))
    started = partial(_run, settings, config, json, accept_history_loss, keep_rows, wait, not no_merge, not no_deliver)
    if on is None:
        started()
        return
    from cdcflow import wiring

    if settings.service.lease is not None:
        wiring.check_readers(settings)
        started(master=on)
        return
    with wiring.readers(settings, on) as readers:
        started(readers)


def _run(
    settings: Config,
    config: Path,
    json: bool,
    accept_history_loss: bool,
    keep_rows: bool,
    wait: bool,
    merges: bool,
    delivers: bool,
    readers: Readers | None = None,
    master: str | None = None,
) -> None:
    """Run the daemon. `readers`: executors that run already; `master`: the cluster on which the daemon starts
    executors while it is active. With neither, this process reads all rows itself."""
    lean()
    from cdcflow import wiring
    from cdcflow.daemon import daemon
    from cdcflow.daemon.events import event_lines, send_structlog_to
    from cdcflow.daemon.executors_component import ExecutorsComponent
    from cdcflow.daemon.interfaces.recent import Recent

    tell = Recent(event_lines(as_json=json))
    send_structlog_to(sys.stdout, as_json=json)
    executors = None
    if master is not None:
        count = settings.database.backfill.ranges_at_once
        executors = ExecutorsComponent(count, partial(wiring.readers, settings, master), tell)
    capture = wiring.capture(
        settings,
        accept_history_loss=accept_history_loss,
        keep_rows=keep_rows,
        wait=wait,
        on_event=tell,
        readers=readers or executors,
    )
    publisher = None if settings.publish is None else wiring.publisher(settings, tell)
    end_loading()
    daemon.run(
        settings,
        capture,
        tell,
        publisher=publisher,
        file=config,
        readers=readers or executors,
        executors=executors,
        merges=merges,
        delivers=delivers,
    )

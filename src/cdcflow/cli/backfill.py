"""`cdcflow backfill`: read tables again, by a running daemon or by this process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from cdcflow.cli import failure, output
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import Config, load
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.daemon.lean import lean
from cdcflow.daemon.requests.backfills import request_backfill, wait_until_read
from cdcflow.errors import ConfigurationError
from cdcflow.reports import readable
from cdcflow.reports.parts import TextTable
from cdcflow.reports.status import reading_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from cdcflow.capture.ports.part_readers import Readers

LINE_EVERY_S = 5.0


Tables = Mapping[str, Mapping[str, Any]]


def backfill(
    tables: Annotated[list[str] | None, typer.Argument(help="As schema.table; none means all captured tables.")] = None,
    config: ConfigPath = DEFAULT_CONFIG,
    json: Json = False,
    wait: Annotated[bool, typer.Option(help="With a running daemon: wait until it has read them.")] = True,
    on: Annotated[
        str | None, typer.Option(help="Have a Spark cluster's executors read: spark://host:port, or local[2].")
    ] = None,
) -> None:
    """Read tables again during the capture, and end when they are read.

    If a daemon runs on the log, it reads them. Otherwise this process captures until they are read. Exits with 1 when a
    table failed or was cancelled.
    """
    settings = load(config)
    before = ask(settings.log.folder, {"op": "status"})
    if before is not None and on is not None:
        raise ConfigurationError(
            "reading with executors: a daemon writes this log, and it reads with its own connections",
            remedy="stop it (`cdcflow ctl stop`), run the same command again, which also captures, then start it; "
            "or start it with `cdcflow run --on`, and run the same command without --on",
            runbook="order-refused",
        )
    if before is None:
        found = _by_ourselves(settings, tuple(tables or ()), on)
    else:
        ordered = request_backfill(settings, tuple(tables or ()))
        if not wait:
            _tell(json, {name: {"state": "ordered"} for name in ordered})
            return
        try:
            found = wait_until_read(settings, ordered, before.get("tables", {}), BackfillProgress)
        except KeyboardInterrupt:
            names = " ".join(ordered)
            typer.echo(
                f"the daemon continues reading {names}; `cdcflow status` shows how far it is, and `cdcflow table "
                "cancel "
                f"{names}` ends it",
                err=True,
            )
            raise typer.Exit(failure.INTERRUPTED) from None
    _tell(json, found)
    if any(fields.get("state") != "done" for fields in found.values()):
        raise typer.Exit(failure.FINDINGS)


def _by_ourselves(settings: Config, tables: Sequence[str], on: str | None = None) -> Tables:
    if on is not None:
        from cdcflow import wiring

        with wiring.readers(settings, on) as readers:
            return _capture_tables(settings, tables, readers)
    return _capture_tables(settings, tables)


def _capture_tables(settings: Config, tables: Sequence[str], readers: Readers | None = None) -> Tables:
    lean()
    from cdcflow.daemon import backfill_process

    return backfill_process.capture_tables(settings, tables, readers, BackfillProgress)


def _tell(json: bool, tables: Tables) -> None:
    if json:
        output.print_json(tables)
        return
    rows = [(name, f.get("state"), readable.number(f.get("rows")), f.get("reason") or "") for name, f in tables.items()]
    output.show([TextTable(("table", "state", "rows", ""), rows)])


class BackfillProgress:
    """Shows the tables' progress from each new status: bars in a terminal, otherwise lines. A context manager."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = output.stderr()
        self._console = console
        self._bars = (
            Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}% {task.fields[state]:<9} {task.fields[rows]:>13} rows"),
                TimeRemainingColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._ids: dict[str, Any] = {}  # Any: rich's TaskID is opaque
        self._said: dict[str, str] = {}
        self._said_at = -LINE_EVERY_S
        self._explained: object = None

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, tables: Mapping[str, Mapping[str, Any]], *, last: bool = False) -> None:
        """Show the tables' states. `last`: this is the final status, so print it even if the last line is recent."""
        if self._bars is not None:
            self._draw(self._bars, tables)
        elif last or time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self._say(tables)

    def explain(self, reading: Mapping[str, Any]) -> None:
        """Print why the source is not read, once for each reason."""
        what = reading.get("state"), *[one["limit"] for one in reading.get("reasons", ())]
        if reading.get("state") == "held" and what != self._explained:
            self._explained = what
            self._console.print(f"reading is {reading_text(reading)}; it continues by itself", markup=False)

    def _draw(self, bars: Progress, tables: Mapping[str, Mapping[str, Any]]) -> None:
        for name, fields in tables.items():
            if name not in self._ids:
                self._ids[name] = bars.add_task(name, total=None, state="", rows="")
            done = fields.get("state") == "done"
            units = fields.get("units") or 0
            bars.update(
                self._ids[name],
                total=units or (1 if done else None),
                completed=(units or 1) if done else min(fields.get("units_done") or 0, units),
                state=str(fields.get("state")),
                rows=readable.number(fields.get("rows")),
            )

    def _say(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        for name, fields in tables.items():
            rows = readable.number(fields.get("rows"))
            line = f"backfill {name} {fields.get('state')} {readable.percent(fields)} rows={rows}"
            if self._said.get(name) != line:
                self._said[name] = line
                self._console.print(line, markup=False)

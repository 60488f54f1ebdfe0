"""Adopts a table whose rows were loaded by another tool."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from cdcflow.capture.interleave.progress import Gap, Progress
from cdcflow.capture.ports.comparison import Comparable
from cdcflow.config import Config, FileLog
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.log.fold.completeness import TableBackfill
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.table import Table, TableId, word
from cdcflow.wiring.captures import open_source
from cdcflow.wiring.logs import log_reader, sealed_layout
from cdcflow.wiring.warehouses import is_merged_here, policies, warehouse

if TYPE_CHECKING:
    from cdcflow.tables.local.attached_tables import AttachReport

DURABLE_WAIT_S = 75.0
"""How long to wait until the command that records the base is durable in the log."""
SEAL_WAIT_S = 5.0
_LOOK_S = 0.1


def attach_table(config: Config, name: str, path: str, as_of: str | None, order: Callable[[str], None]) -> AttachReport:
    """Create the table of that name from the rows at a path. `order` sends the daemon the command that records this
    base.

    Raises:
        ConfigurationError: it is not possible; the message has the reason and the remedy.
        SinkUnavailable: a merge is running.
    """
    from cdcflow import local
    from cdcflow.tables.formats import format_for

    _check_mode(config, name)
    place = warehouse(config)
    if not is_merged_here(config, place):
        raise ConfigurationError(
            f"attaching {name}: only tables in a folder of this machine, and Delta tables in a bucket, are written"
            " without Spark",
            remedy=f"run `cdcflow backfill {word(name)}` to read all of it",
            runbook="attach",
        )
    chosen = format_for(place, config.merge.format)
    reader = log_reader(config)
    shape = _shape(config, reader, name)
    known = _gap(reader, shape.id)

    def order_base(base: str) -> int:
        order(base)
        return _heard_of(reader, shape.id, base)

    with closing(local.local_engine(place, chosen)) as engine:
        is_wide = policies(config).of(name).readable == "wide"
        base = "" if known is None else known.base
        layout = sealed_layout(config)
        made = local.table_with_base(engine, place, layout, shape, path, as_of, wide=is_wide, known=base)
        report = made.run(order_base)
    if isinstance(config.log, FileLog):
        _wait_until_sealed(layout, shape.id, config.log.seal.age_max + SEAL_WAIT_S)
    return report


def _wait_until_sealed(layout: Layout, table: TableId, wait_s: float) -> None:
    """Wait until the base is sealed, so that the next merge sees it, and does not report the table as still
    being read."""
    from cdcflow.tables.segments import backfills, sealed_range

    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        log = sealed_range(layout)
        if log.newest is not None and TableBackfill.of(backfills(log).get(str(table), {})).base:
            return
        time.sleep(_LOOK_S)


def _check_mode(config: Config, name: str) -> None:
    mode = policies(config).of(name).mode
    if (there := policies(config).routes.find(name)) is not None:
        raise ConfigurationError(
            f"attaching {name}: its rows go to {there.table} (merge.tables.routes), and only a table under its own name"
            " can have a base",
            remedy=f"run `cdcflow backfill {word(name)}` to read all of it",
            runbook="attach",
        )
    if mode not in (None, "current"):
        raise ConfigurationError(
            f"attaching {name}: it has mode {mode}, and only a table of mode current can have a base",
            remedy=f'give it another mode (merge.tables.each: {{"{name}": {{mode: current}}}}), or run'
            f" `cdcflow backfill {word(name)}` to read all of it",
            runbook="attach",
        )


def _shape(config: Config, reader: LogReader, name: str) -> Table:
    source = open_source(config)
    if not isinstance(source, Comparable):
        raise ConfigurationError("this source cannot be compared, and a table with a base must be", runbook="verify")
    with closing(source.comparison(reader.newest_checkpoint())) as comparison:
        shape = next((t for t in comparison.tables() if str(t.id) == name), None)
    if shape is None:
        raise ConfigurationError(
            f"attaching {name}: the daemon does not capture a table of that name",
            remedy="name it as schema.table, and have `source.tables` select it",
            runbook="table-not-found",
        )
    if not shape.key:
        raise ConfigurationError(
            f"attaching {name}: it has no key to name the rows by that differ",
            remedy=f"run `cdcflow backfill {word(name)}` to read all of it",
            runbook="attach",
        )
    return shape


def _gap(reader: LogReader, table: TableId) -> Gap | None:
    known = Progress.from_json(reader.newest_checkpoint().progress).tables.get(table)
    return None if known is None else known.gap


def _heard_of(reader: LogReader, table: TableId, base: str) -> int:
    """Return the log's next offset at the time when the daemon received a base, once that is durable in the log."""
    until = time.monotonic() + DURABLE_WAIT_S
    while True:
        gap = _gap(reader, table)
        if gap is not None and gap.base == base:
            return gap.offset
        if time.monotonic() >= until:
            raise SourceUnavailable(
                f"attaching {table}: the daemon did not write the command into the log within {DURABLE_WAIT_S:.0f} s",
                remedy="check `cdcflow status`, then attach again",
                runbook="no-daemon",
            )
        time.sleep(_LOOK_S)

"""Read all tables at one cut, without Spark, as Arrow (see `cdcflow.tables.cut`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.tables.cut import REPLACED, Cut, is_replaced, version_gone
from cdcflow.tables.formats import format_for
from cdcflow.tables.job.failures import FileUnreadable, read_tables, wanted_tables
from cdcflow.tables.job.moments import AsOf, find
from cdcflow.tables.job.past_tables import VersionGone
from cdcflow.tables.local.engine import LocalEngine, of_local
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import HandOver


def published_cut(warehouse: Warehouse, cut: int | None, as_of: AsOf | None) -> Cut:
    """Return a published cut: its tables, each with its state, and the tables excluded from it. `cut` is its number,
    and `as_of` a point in time (see `cdcflow.tables.job.moments`); without either, return the latest.

    Raises:
        ConfigurationError: no such cut was published.
    """
    with closing(LocalEngine(warehouse, format_for(warehouse, None))) as engine:
        return find(engine.cuts(), warehouse, cut, as_of)


def read_cut(
    warehouse: Warehouse, cut: int | None, as_of: AsOf | None, incomplete: bool, tables: Collection[str] | None
) -> dict[str, pa.Table]:
    """Return all tables at one cut, keyed by name, in memory; in other respects as `cdcflow.spark.cuts.read_cut`.

    Raises:
        ConfigurationError: no such cut was published, or only Spark can read one of its tables.
        HistoryLost: a table's state at that cut no longer exists.
    """
    with closing(LocalEngine(warehouse, format_for(warehouse, None))) as engine:
        found = find(engine.cuts(), warehouse, cut, as_of)
        wanted = wanted_tables(found, tables, incomplete=incomplete)

        def rows(name: str) -> pa.Table:
            with open_table(engine, warehouse, found, name) as there:
                return there.rows()

        return read_tables(found, wanted, rows, engine.name, warehouse, of_local)


@contextmanager
def open_table(engine: LocalEngine, warehouse: Warehouse, cut: Cut, name: str) -> Iterator[FileTable[Any]]:
    """Yield a table of a cut. Reads within the block return its state at the cut.

    Raises:
        ConfigurationError: only Spark can read it.
        HistoryLost: its state at that cut no longer exists.
    """
    table = cut.tables[name]
    with closing(engine.table(table.path.split("/"))) as there:
        try:
            newest = there.snapshot()
            if newest is None:
                raise version_gone(warehouse, cut, name, "its folder is gone")
            if (table.id and table.id != newest.id) or newest.version < table.version:
                raise version_gone(warehouse, cut, name, "another table is in its folder, created since then")
            commit = there.commit_of(table.version)
            then = there.as_of(table.version)
            if is_replaced(cut, name, commit, {} if then is None else then.transactions):
                raise version_gone(warehouse, cut, name, REPLACED)
            try:
                yield there
            except FileNotFoundError:
                if table.version == newest.version:
                    raise FileUnreadable("") from None  # nothing removes these in regular operation
                raise
        except (VersionGone, FileNotFoundError) as error:
            raise version_gone(warehouse, cut, name, "that version, or files of it, were removed") from error
        except HandOver as reason:
            raise ConfigurationError(
                f"reading table {name} of {warehouse} without Spark: {reason}",
                remedy="read it with Spark: cdcflow.spark.read_cut",
                runbook="merge-session",
            ) from reason

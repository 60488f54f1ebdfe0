"""Merging and reading without Spark and Java, under one name for programs.

    merge(log_path, warehouse)      merge the new changes of a log into tables
    read_live(log_path, warehouse)  all tables as of the latest sealed cut, without a merge (`live`)
    read_cut(warehouse)             all tables as of one cut, as Arrow (`cuts`)

The modules are in `cdcflow.tables.local`. Importing this package imports neither DuckDB nor what a format needs; a
missing package is reported on the first call that needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError
from cdcflow.tables.local.reachable import is_installed, only_for_spark
from cdcflow.tables.merge.policy import DEFAULTS, Policies

if TYPE_CHECKING:
    import pyarrow as pa

    from cdcflow.log.files.layout import Layout
    from cdcflow.log.query.log import CurrentRows
    from cdcflow.model.table import Table
    from cdcflow.tables.cut import Cut
    from cdcflow.tables.folders import WarehouseFolder
    from cdcflow.tables.job.job import OnEdit
    from cdcflow.tables.job.live import Live
    from cdcflow.tables.job.moments import AsOf
    from cdcflow.tables.job.reports import MergeReport, SeveralReport
    from cdcflow.tables.local.attached_tables import Attaching
    from cdcflow.tables.local.engine import LocalEngine
    from cdcflow.tables.paths import Warehouse
    from cdcflow.tables.verify.port import Comparer, Copy

__all__ = [
    "comparer",
    "copy_of",
    "is_installed",
    "local_engine",
    "merge",
    "only_for_spark",
    "published_cut",
    "read_cut",
    "reaches",
    "read_live",
    "table_with_base",
]

CHANGES_MAX, BYTES_MAX = 500_000, 128 << 20
"""Limits for a table in `auto` mode: all of it is held in one process's memory. For columns that are only scanned the
limit is `tables.SCANNED_TIMES` as high."""


def reaches(warehouse: Warehouse) -> bool:
    """Return whether tables in this warehouse are merged and read without Spark."""
    return only_for_spark(warehouse) is None


def local_engine(
    warehouse: Warehouse | Path | str, table_format: str, *, bounded: bool = False, memory_max: int | None = None
) -> LocalEngine:
    """Return the engine for a warehouse. `bounded`: it leaves large tables to Spark. `memory_max`: how many bytes of
    memory the process may have.

    Raises:
        ConfigurationError: a package is not installed.
    """
    _check_installed(f"merging without Spark into {table_format} tables", table_format)
    from cdcflow.tables.local.engine import LocalEngine

    changes_max, bytes_max = (CHANGES_MAX, BYTES_MAX) if bounded else (None, None)
    return LocalEngine(warehouse, table_format, changes_max, bytes_max, memory_max)


@contextmanager
def comparer(table_format: str) -> Iterator[Comparer]:
    """Yield a comparer of rows for the duration of the block.

    Raises:
        ConfigurationError: a package is not installed.
    """
    _check_installed("comparing rows", table_format)
    from cdcflow.tables.local.comparison import DuckComparer

    with closing(DuckComparer()) as made:
        yield made


def copy_of(layout: Layout, warehouse: Warehouse, engine: LocalEngine, *, of_log: bool, policies: Policies) -> Copy:
    """Return the copy that a source is compared with: the log's fold, or the tables."""
    from cdcflow.tables.local.comparison import LocalCopy

    return LocalCopy(layout, warehouse, engine, of_log=of_log, policies=policies)


def current_rows() -> CurrentRows:
    """Return the builder of whole tables from a log.

    Raises:
        ConfigurationError: a package is not installed.
    """
    _check_installed("building a whole table from a log", "delta")
    from cdcflow.tables.local.current import LocalCurrent

    return LocalCurrent()


def table_with_base(
    engine: LocalEngine,
    warehouse: Warehouse,
    layout: Layout,
    shape: Table,
    path: str,
    as_of: str | None,
    *,
    wide: bool = False,
    known: str = "",
) -> Attaching:
    """Return a table to be built from the rows at a path. `known`: the base that the daemon has recorded.

    Raises:
        ConfigurationError: the rows cannot be read.
    """
    from cdcflow.tables.local.attached_tables import Attaching
    from cdcflow.tables.local.bases import open_base
    from cdcflow.tables.local.warehouse_folder import open_folder
    from cdcflow.tables.paths import Warehouse

    def reach(url: str) -> WarehouseFolder:
        place = Warehouse.of(url)
        store = None if warehouse.store is None or place.place is None else warehouse.store.for_place(place.place)
        return open_folder(replace(place, store=store))

    return Attaching(engine, warehouse, layout, shape, open_base(path, as_of, reach), wide=wide, known=known)


def _check_installed(attempted: str, table_format: str) -> None:
    if not is_installed(table_format):
        raise ConfigurationError(
            f"{attempted} needs packages that are not installed",
            remedy="run `pip install 'cdcflow[local]'`",
            runbook="package-missing",
        )


def merge(
    log: Layout | Path | str,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    on_edit: OnEdit = "warn",
    table_format: str | None = None,
    policies: Policies = DEFAULTS,
) -> MergeReport:
    """Bring every current-state table to the latest sealed cut of the log, then publish the cut.

    `table_format`: "delta" or "iceberg"; `None`: the format that the warehouse has, and Delta for a new one. Everything
    else, including errors, is as in `cdcflow.tables.job.job.merge`. A table that only Spark can merge correctly is
    excluded from the cut, with the reason.
    """
    from cdcflow.tables.formats import format_for
    from cdcflow.tables.job import job
    from cdcflow.tables.job.engines import Engines
    from cdcflow.tables.paths import Warehouse

    root = Warehouse.of(warehouse)
    with closing(local_engine(root, format_for(root, table_format))) as engine:
        engines = Engines(engine, remedy=NEEDS_SPARK)
        return job.merge(engines, log, root, tables, on_edit=on_edit, policies=policies)


def merge_logs(
    logs: Mapping[str, Layout | Path | str],
    warehouse: Warehouse | Path | str,
    *,
    without: Collection[str] = (),
    table_format: str | None = None,
    policies: Policies | Mapping[str, Policies] = DEFAULTS,
) -> SeveralReport:
    """Bring the tables of several logs, keyed by name, to a time that all of them have reached, then publish one cut.

    `table_format`: as in `merge`; `policies`: the same for all logs, or keyed by the log's name; everything else,
    including errors, is as in `cdcflow.tables.job.several_logs.merge_logs`.
    """
    from cdcflow.log.files.layout import Layout
    from cdcflow.tables.formats import format_for
    from cdcflow.tables.job import several_logs
    from cdcflow.tables.job.engines import Engines
    from cdcflow.tables.paths import Warehouse

    root = Warehouse.of(warehouse)
    by_log = policies if isinstance(policies, Mapping) else dict.fromkeys(logs, policies)
    listed = [several_logs.Merged(name, Layout.of(log), by_log.get(name, DEFAULTS)) for name, log in logs.items()]
    with closing(local_engine(root, format_for(root, table_format))) as engine:
        return several_logs.merge_logs(Engines(engine, remedy=NEEDS_SPARK), listed, root, without=without)


def read_live(
    log: Layout | Path | str,
    warehouse: Warehouse | Path | str,
    tables: Collection[str] | None = None,
    *,
    incomplete: bool = False,
    policies: Policies = DEFAULTS,
) -> Live[pa.Table]:
    """Return all tables, or some, as of the latest sealed cut of the log, keyed by name; nothing is merged or written.

    All of their rows are read into memory. Everything else, including errors, is as in `cdcflow.tables.job.live.read`;
    a table that only Spark reads correctly is listed in `Live.left_out`.
    """
    from cdcflow.tables.formats import format_for
    from cdcflow.tables.job import live
    from cdcflow.tables.local.live import LocalReader

    root = _warehouse(warehouse)
    with closing(local_engine(root, format_for(root, None))) as engine:
        return live.read(LocalReader(engine), log, root, tables, incomplete=incomplete, policies=policies)


def published_cut(warehouse: Warehouse | Path | str, cut: int | None = None, *, as_of: AsOf | None = None) -> Cut:
    """Return a published cut: its tables with their states, and the excluded ones (see `cdcflow.tables.local.cuts`)."""
    from cdcflow.tables.local import cuts

    return cuts.published_cut(_warehouse(warehouse), cut, as_of)


def read_cut(
    warehouse: Warehouse | Path | str,
    cut: int | None = None,
    *,
    as_of: AsOf | None = None,
    incomplete: bool = False,
    tables: Collection[str] | None = None,
) -> dict[str, pa.Table]:
    """Return all tables, or some, at one cut or point in time, in memory (see `cdcflow.tables.local.cuts.read_cut`)."""
    from cdcflow.tables.local import cuts

    return cuts.read_cut(_warehouse(warehouse), cut, as_of, incomplete, tables)


def _warehouse(warehouse: Warehouse | Path | str) -> Warehouse:
    """Return the warehouse of the tables.

    Raises:
        ConfigurationError: a package that reads them is not installed.
    """
    from cdcflow.tables.formats import format_for
    from cdcflow.tables.paths import Warehouse

    root = Warehouse.of(warehouse)
    _check_installed(f"reading {root} without Spark", format_for(root, None))
    return root


def needs_spark(remedy: str) -> str:
    """Return the remedy for a table that the local engine cannot merge. `remedy`: the step that makes Spark
    available."""
    return f"{remedy}: Spark then merges this table, and the local engine the others"


NEEDS_SPARK = needs_spark("set merge.engine to auto and run `pip install 'cdcflow[spark]'`")

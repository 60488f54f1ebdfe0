"""Compares the configured source with its log and tables."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from cdcflow.capture.ports.comparison import Comparable
from cdcflow.config import Config
from cdcflow.wiring.captures import log_event, open_source
from cdcflow.wiring.logs import existing_log, sealed_layout
from cdcflow.wiring.plugged import lacking
from cdcflow.wiring.source_load import governor, reading_limits
from cdcflow.wiring.warehouses import is_merged_here, policies, warehouse

if TYPE_CHECKING:
    import pyarrow as pa

    from cdcflow.log.files.layout import Layout
    from cdcflow.model.digest import Buckets
    from cdcflow.model.table import TableId
    from cdcflow.tables.merge.target import Target
    from cdcflow.tables.verify import Report, TableReport
    from cdcflow.tables.verify.job import Pace
    from cdcflow.tables.verify.port import At, Columns, Comparer, Copy
    from cdcflow.tables.verify.report import Against


T = TypeVar("T")


def run_verification(
    config: Config,
    tables: Collection[str] = (),
    *,
    against: Collection[Against],
    differences_max: int,
    keys_max: int = 0,
    pace: Pace | None = None,
    watch: Callable[[TableReport], None] | None = None,
) -> Report:
    """Compare the configured source with its log, with its tables in the warehouse, or with both.

    Raises:
        ConfigurationError: there is no log; a package is missing; a name is not a table's.
    """
    from cdcflow import local
    from cdcflow.tables.formats import format_for
    from cdcflow.tables.verify.job import PACE, verify

    reader = existing_log(config)
    source = open_source(config)
    if not isinstance(source, Comparable):
        raise lacking(
            config.database,
            "cannot be compared with its log and tables",
            "compare by other means; `cdcflow log check` checks the log itself",
        )
    place = warehouse(config)
    chosen = format_for(place, config.merge.format)
    layout = sealed_layout(config)
    with ExitStack() as stack:
        # The step that may fail for a missing package comes first.
        comparer = stack.enter_context(local.comparer(chosen))
        comparison = source.comparison(reader.newest_checkpoint())
        stack.callback(comparison.close)
        copy = _copies(config, layout, chosen, comparer, stack)
        copies: dict[Against, Copy] = {kind: copy(kind) for kind in against}
        pace = pace or PACE
        if reading_limits(config):
            gate = governor(config, log_event)
            stack.callback(gate.close)
            pace = replace(pace, gate=gate)
        return verify(
            comparison,
            reader,
            copies,
            comparer,
            tables,
            differences_max=differences_max,
            keys_max=keys_max,
            pace=pace,
            watch=watch,
        )


def _copies(
    config: Config, layout: Layout, chosen: str, comparer: Comparer, stack: ExitStack
) -> Callable[[Against], Copy]:
    """Return a function that creates the copies with the engine that merges: the local one, Spark, or both."""
    from cdcflow import local
    from cdcflow.spark.runtime.java import missing_for_spark

    place, rules = warehouse(config), policies(config)

    @cache
    def spark() -> Any:  # a session: only the spark package may name its class
        from cdcflow.spark.session import session_for

        return session_for(config)

    def by_spark(kind: Against) -> Copy:
        from cdcflow.spark.comparison import SparkCopy

        return SparkCopy(spark(), layout, place, chosen, comparer, of_log=kind == "log", policies=rules)

    if config.merge.engine == "spark" or not is_merged_here(config, place):
        return by_spark
    alone = config.merge.engine == "local" or missing_for_spark() is not None
    engine = local.local_engine(place, chosen, bounded=not alone)
    stack.callback(engine.close)

    def by_local(kind: Against) -> Copy:
        copy = local.copy_of(layout, place, engine, of_log=kind == "log", policies=rules)
        return copy if alone else EitherCopy(copy, lambda: by_spark(kind))

    return by_local


class EitherCopy:
    """The local engine's copy, and for tables that it does not support the other engine's. Implements
    `tables.verify.port.Copy`."""

    def __init__(self, first: Copy, other: Callable[[], Copy]) -> None:
        self._first = first
        self._other = other
        self._made: Copy | None = None
        self._declined: set[TableId] = set()

    def describe(self, table: TableId) -> Target:
        return self._answer(table, lambda copy: copy.describe(table))

    def digests(self, columns: Columns, buckets: Buckets | None = None) -> tuple[At, pa.Table]:
        return self._answer(columns.table, lambda copy: copy.digests(columns, buckets))

    def buckets(self, columns: Columns, buckets: Buckets) -> tuple[At, pa.Table]:
        return self._answer(columns.table, lambda copy: copy.buckets(columns, buckets))

    def rows(self, columns: Columns, keys: pa.Table) -> tuple[At, pa.Table]:
        return self._answer(columns.table, lambda copy: copy.rows(columns, keys))

    def _answer(self, table: TableId, ask: Callable[[Copy], T]) -> T:
        from cdcflow.tables.verify.live_copy import Declined

        if table not in self._declined:
            try:
                return ask(self._first)
            except Declined:
                self._declined.add(table)
        if self._made is None:
            self._made = self._other()
        return ask(self._made)

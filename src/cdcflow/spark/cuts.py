"""The table of published cuts, through Spark, and reading all tables at one cut (see `tables.cut`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.model.sqltypes import text_sql
from cdcflow.spark.formats import table_format
from cdcflow.spark.runtime.connect import refuse_connect
from cdcflow.spark.runtime.failures import of_spark
from cdcflow.spark.runtime.stores import reach
from cdcflow.spark.sql import StatementTable
from cdcflow.tables.cut import (
    EXPIRED_PROPERTY,
    LATER_COLUMNS,
    MEMBERS,
    PUBLICATION,
    REPLACED,
    Cut,
    ListedCut,
    already_published,
    is_replaced,
    newest_of_each,
    version_gone,
)
from cdcflow.tables.formats import format_for, rules_of
from cdcflow.tables.job.failures import read_tables, wanted_tables
from cdcflow.tables.job.moments import AsOf, find
from cdcflow.tables.merge.statement import create_table
from cdcflow.tables.paths import CUTS, Warehouse
from cdcflow.tables.port import Kept, Shown, TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = (
    "cut BIGINT, log_id STRING, `offset` BIGINT, position STRING, commit_clock TIMESTAMP, published TIMESTAMP,"
    " tables MAP<STRING, STRUCT<path: STRING, version: BIGINT, complete: BOOLEAN, generation: BIGINT>>"
)

VERSIONS_KEPT_S = 3600.0
"""Versions of the table of cuts that are younger than this are kept, because readers may be using them."""


class CutsTable:
    """The published cuts of a warehouse, through one Spark session: implements `cdcflow.tables.port.Cuts`."""

    def __init__(self, spark: SparkSession, format_: str, warehouse: Warehouse | Path, *, named: bool = False) -> None:
        """`named`: as in `SparkFormat.table`."""
        self._spark = spark
        self._rules = rules_of(format_)
        self._format = table_format(format_)
        self._table = self._format.table(spark, warehouse, (CUTS,), named=named)
        self._version: int | None = None

    def drop_torn(self) -> None:
        self._table.drop_torn()

    def newest(self) -> Cut | None:
        """Return the latest published cut; `None` if there is none. It is read from the commit that published it, so
        the number of cuts does not matter."""
        there = self._table.snapshot()
        self._version = _version(there)
        if there is None:
            return None
        said = self._table.newest_commit()
        found = None if said is None else said.get("published")
        return self._find(there, None) if found is None else Cut.from_json(found)

    def cut_by_number(self, cut: int) -> Cut | None:
        """Return the cut with that number; `None` if it was not published."""
        there = self._table.snapshot()
        return None if there is None else self._find(there, cut)

    def list_cuts(self) -> list[ListedCut]:
        """Return all kept cuts, oldest first, each once."""
        if self._table.snapshot() is None:
            return []
        rows = self._spark.table(self._table.sql).selectExpr(
            "cut",
            "`offset`",
            "position",
            "unix_micros(commit_clock) commit_clock",
            "unix_micros(published) published",
            "size(tables) tables",
        )
        return newest_of_each(ListedCut(**row.asDict()) for row in rows.collect())

    def latest_expired(self) -> int:
        """Return the latest cut that maintenance has expired; 0 if none has expired yet."""
        there = self._table.snapshot()
        return 0 if there is None else int(there.properties.get(EXPIRED_PROPERTY, "0"))

    def tables_shown(self) -> Mapping[str, Shown]:
        """Return every table that a kept cut shows, keyed by name."""
        there = self._table.snapshot()
        if there is None:
            return {}
        id_ = "coalesce(ids[name], '')" if "ids" in {c.name for c in there.columns} else "''"
        entries = self._spark.table(self._table.sql).selectExpr("explode(tables) AS (name, entry)", "*")
        found = entries.selectExpr("name", "entry.path path", f"{id_} id", "entry.version version").distinct()
        ids: dict[str, dict[str, set[int]]] = {}
        paths: dict[str, str] = {}
        for row in found.collect():
            paths[row.name] = row.path
            ids.setdefault(row.name, {}).setdefault(row.id, set()).add(row.version)
        return {n: Shown(paths[n], {i: frozenset(v) for i, v in of.items()}) for n, of in ids.items()}

    def tidy(self, oldest: int) -> None:
        """Expire the cuts before `oldest`, if there are any, and merge the small files of the table of cuts."""
        if self._table.snapshot() is None:
            return
        if not self._spark.table(self._table.sql).where(f"cut < {int(oldest)}").isEmpty():
            # This first, so that a reader of an expired cut gets the reason.
            said = {"upkeep": "cuts", "oldest": oldest}
            told = f"ALTER TABLE {self._table.sql} SET TBLPROPERTIES ('{EXPIRED_PROPERTY}' = '{int(oldest) - 1}')"
            self._table.commit(told, said)
            self._table.commit(f"DELETE FROM {self._table.sql} WHERE cut < {int(oldest)}", said)  # noqa: S608  cdcflow's own
        self._table.compact()
        self._table.let_go(Kept({}, 0, time.time() - VERSIONS_KEPT_S))

    def _find(self, there: TableSnapshot, cut: int | None) -> Cut | None:
        rows = self._spark.table(self._table.sql)
        if cut is not None:
            rows = rows.where(f"cut = {int(cut)}")
        later = [name for name in (*LATER_COLUMNS, MEMBERS) if name in {c.name for c in there.columns}]
        clock = "unix_micros(commit_clock) clock"
        found = (
            rows.selectExpr("cut", "log_id", "`offset`", "position", clock, "tables", "published", *later)
            .orderBy("cut", "published", ascending=False)
            .limit(1)
            .collect()
        )
        if not found:
            return None
        row = found[0].asDict(recursive=True)
        return Cut.from_row(row, row["clock"])

    def publish(self, cut: Cut) -> None:
        """Append a cut. A cut may be published again, for example because a backfill turned out to be done; for
        readers, the new row replaces the earlier one.

        Raises:
            SinkUnavailable: another merge has published a cut since `newest` was called.
        """
        metadata = {"log": cut.log_id, "cut": cut.cut}
        there = self._table.snapshot()
        if self._version is not None and self._version != _version(there):
            raise already_published(cut)
        known = set() if there is None else {c.name for c in there.columns}
        wanted = [*LATER_COLUMNS, *([MEMBERS] if any(table.members for table in cut.tables.values()) else [])]
        later = ", ".join(f"{name} MAP<STRING, STRING>" for name in wanted if name not in known)
        if there is None:
            made = create_table(self._table.sql, self._rules, f"{_COLUMNS}, {later}", {}, self._table.location)
            self._table.commit(made, metadata)
        elif later:
            self._table.commit(f"ALTER TABLE {self._table.sql} ADD COLUMNS ({later})", metadata)
        number = 1 + (0 if there is None else there.transactions.get(PUBLICATION, 0))
        try:
            said = {**metadata, "published": cut.to_json()}
            has_members = MEMBERS in {*known, *wanted}
            self._table.add_newest(
                _row_sql(cut, has_members=has_members), "cut", cut.cut + 1, said, PUBLICATION, number
            )
        except Exception as error:
            if self._format.is_conflict(error):
                raise already_published(cut) from error
            raise
        if self._table.newest_commit() != said:
            raise already_published(cut)
        self._table.sync(None if there is None else there.version)
        self._version = _version(self._table.snapshot())


def _version(there: TableSnapshot | None) -> int:
    return -1 if there is None else there.version


def _row_sql(cut: Cut, *, has_members: bool = False) -> str:
    """Return the cut as a row in SQL, which Spark evaluates without a job. `has_members`: the table has that column."""

    def texts(found: Mapping[str, str]) -> str:
        listed = ", ".join(f"{text_sql(name)}, {text_sql(text)}" for name, text in found.items())
        return f"map({listed})" if listed else "CAST(map() AS MAP<STRING, STRING>)"

    tables = [
        f"{text_sql(name)}, named_struct('path', {text_sql(t.path)}, 'version', {t.version}L, 'complete', {t.complete},"
        f" 'generation', {t.generation}L)"
        for name, t in cut.tables.items()
    ]
    entry = "STRUCT<path: STRING, version: BIGINT, complete: BOOLEAN, generation: BIGINT>"
    columns = {
        "cut": f"{cut.cut}L",
        "log_id": text_sql(cut.log_id),
        "`offset`": f"{cut.offset}L",
        "position": text_sql(cut.position),
        "commit_clock": f"timestamp_micros({cut.commit_clock}L)",
        "published": "current_timestamp()",
        "tables": f"map({', '.join(tables)})" if tables else f"CAST(map() AS MAP<STRING, {entry}>)",
        "ids": texts({name: t.id for name, t in cut.tables.items()}),
        "states": texts({name: t.state for name, t in cut.tables.items()}),
        "left_out": texts(cut.left_out),
        "tags": texts({name: t.tag for name, t in cut.tables.items()}),
        "logs": texts({log_id: part.to_json() for log_id, part in cut.logs.items()}),
        "commits": texts({name: t.commit for name, t in cut.tables.items()}),
    }
    if has_members:
        columns[MEMBERS] = texts({name: t.members_json for name, t in cut.tables.items() if t.members})
    return f"SELECT {', '.join(f'{value} AS {name}' for name, value in columns.items())}"


def published_cut(
    spark: SparkSession, warehouse: Warehouse | Path | str, cut: int | None = None, *, as_of: AsOf | None = None
) -> Cut:
    """Return a published cut: its tables, each with its state, and the tables excluded from it. `cut` is its number,
    and `as_of` a point in time (see `cdcflow.tables.job.moments`); without either, return the latest.

    Raises:
        ConfigurationError: no such cut was published, or the session is Spark Connect's.
    """
    refuse_connect(spark)
    root = with_reachable_store(spark, warehouse)
    return find(CutsTable(spark, format_for(root, None), root), root, cut, as_of)


def read_cut(
    spark: SparkSession,
    warehouse: Warehouse | Path | str,
    cut: int | None = None,
    *,
    as_of: AsOf | None = None,
    incomplete: bool = False,
    tables: Collection[str] | None = None,
) -> dict[str, DataFrame]:
    """Return all tables at one cut, keyed by name. Later merges do not change them. `cut` and `as_of`: as in
    `published_cut`.

    `tables`: only these. Tables with rows that were still to be read at that cut are excluded unless `incomplete`. A
    table that was complete once is included, also while it is read again, or when it is no longer captured:
    `published_cut` has its state. In addition to its own columns a table has `_offset` (the last change of the row) and
    `_missing` (columns not known yet, NULL in a complete table).

    Raises:
        ConfigurationError: no such cut was published.
        HistoryLost: a table's state at that cut no longer exists (VACUUM, or another table is in its place).
        TableFailed: no table can be read. If only some cannot, they are excluded, each with a warning that names the
            reason.
    """
    root = with_reachable_store(spark, warehouse)
    found = published_cut(spark, root, cut, as_of=as_of)
    format_ = table_format(format_for(root, None))
    wanted = wanted_tables(found, tables, incomplete=incomplete)

    def rows_of(name: str) -> DataFrame:
        there = format_.table(spark, root, found.tables[name].path.split("/"))
        return _rows_at_cut(there, root, found, name)

    return read_tables(found, wanted, rows_of, "spark", root, of_spark)


def with_reachable_store(spark: SparkSession, warehouse: Warehouse | Path | str) -> Warehouse:
    """Return the warehouse, after making its store reachable for the session."""
    place = Warehouse.of(warehouse)
    if place.store is not None:
        reach(spark, place.store)
    return place


def _rows_at_cut(there: StatementTable, root: Warehouse, cut: Cut, name: str) -> DataFrame:
    table = cut.tables[name]
    if why := _why_lost(there, cut, name):
        raise version_gone(root, cut, name, why)
    return there.rows_at(table.version)


def _why_lost(there: StatementTable, cut: Cut, name: str) -> str | None:
    """Return why a table of a cut cannot be read; `None` if it can."""
    table, newest = cut.tables[name], there.snapshot()
    if newest is None:
        return "its folder is gone"
    if (table.id and table.id != newest.id) or newest.version < table.version:
        return "its folder holds another table, created since then"
    if table.id and table.version == newest.version:
        return REPLACED if is_replaced(cut, name, newest.commit, newest.transactions) else None
    if why := there.why_lost(table.version):
        return why
    if not table.id and not 0 < there.transactions_of(table.version).get(f"cdcflow/{cut.log_id}/{name}", 0) <= cut.cut:
        return "its folder holds another table, created since then"  # an older cdcflow did not keep the id
    if is_replaced(cut, name, commit := there.commit_of(table.version), {}) or (
        not (table.commit and commit) and is_replaced(cut, name, "", there.transactions_of(table.version))
    ):
        return REPLACED
    return None

"""Published cuts: which version of every table shows one and the same moment of the source.

    <warehouse>/_cdcflow_cuts     one row a cut; `tables` maps a table's name to its path, version, and whether every
                                  row of it is there; `ids` and `states` say more of each; `left_out` why one is not

The row is appended when every table has the cut, so whoever reads tables through it sees all of a moment or nothing.
Maintenance must keep what the kept cuts need: VACUUM with a retention longer than the age of the oldest cut in use.
A version number means something in one table only. A cut therefore says which table (its id), and what is at the
path by now is compared with it: after somebody moved a table's folder away, version 3 is another moment's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.spark.delta import committing, files_gone, snapshot, version_of
from cdcflow.spark.paths import CUTS, delta_sql, local_warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = (
    "cut BIGINT, log_id STRING, `offset` BIGINT, position STRING, commit_clock TIMESTAMP, published TIMESTAMP,"
    " tables MAP<STRING, STRUCT<path: STRING, version: BIGINT, complete: BOOLEAN, generation: BIGINT>>"
)
_LATER_COLUMNS = ("ids", "states", "left_out")
"""Maps from a table's name to text, which an older cdcflow did not have."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table in a cut. `generation`: the newest backfill whose sweep it has seen (0: none).

    `complete`: every row is there. `state` is the table's in the log then: of a complete table, another one than "done"
    says that it is being read again, that this was given up, or that it is no longer captured ("forgotten") and shows
    an older moment. `id` is the Delta table's. Both are "" in a cut of an older cdcflow.
    """

    path: str
    version: int
    complete: bool
    generation: int = 0
    id: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """A published cut. `commit_clock` is in microseconds since 1970 UTC. `left_out`: tables that could not be brought
    to it, and why."""

    cut: int
    log_id: str
    offset: int
    position: str
    commit_clock: int
    tables: Mapping[str, CutTable]
    left_out: Mapping[str, str] = field(default_factory=dict)


def newest_cut(spark: SparkSession, warehouse: Path, cut: int | None = None) -> Cut | None:
    """The newest published cut, or the one of that number; None where there is none."""
    there = snapshot(spark, warehouse.resolve() / CUTS)
    if there is None:
        return None
    rows = spark.table(delta_sql(warehouse, CUTS))
    if cut is not None:
        rows = rows.where(f"cut = {int(cut)}")
    later = [name for name in _LATER_COLUMNS if name in {c.name for c in there.columns}]
    found = (
        rows.selectExpr(
            "cut", "log_id", "`offset`", "position", "unix_micros(commit_clock) clock", "tables", "published", *later
        )
        .orderBy("cut", "published", ascending=False)
        .limit(1)
        .collect()
    )
    if not found:
        return None
    row = found[0].asDict()
    ids, states, left_out = (row.get(name) or {} for name in _LATER_COLUMNS)
    tables = {
        name: CutTable(t.path, t.version, t.complete, t.generation, ids.get(name, ""), states.get(name, ""))
        for name, t in row["tables"].items()
    }
    return Cut(row["cut"], row["log_id"], row["offset"], row["position"], row["clock"], tables, left_out)


def publish(spark: SparkSession, warehouse: Path, cut: Cut) -> None:
    """Append the cut. One that is published again (a backfill was found to be done) replaces itself for readers."""
    table = delta_sql(warehouse, CUTS)
    metadata = {"log": cut.log_id, "cut": cut.cut}
    there = snapshot(spark, warehouse.resolve() / CUTS)
    later = [f"{name} MAP<STRING, STRING>" for name in _LATER_COLUMNS]
    columns = ", ".join([_COLUMNS, *later])
    if there is None:
        with committing(spark, metadata):
            spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({columns}) USING delta")
    elif _LATER_COLUMNS[-1] not in {c.name for c in there.columns}:
        with committing(spark, metadata):
            spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({', '.join(later)})")
    clock = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=cut.commit_clock)
    tables = {n: (t.path, t.version, t.complete, t.generation) for n, t in cut.tables.items()}
    more = ({n: t.id for n, t in cut.tables.items()}, {n: t.state for n, t in cut.tables.items()}, dict(cut.left_out))
    row = (cut.cut, cut.log_id, cut.offset, cut.position, clock, datetime.now(UTC), tables, *more)
    frame = spark.createDataFrame([row], columns).coalesce(1)
    with committing(spark, metadata):
        frame.write.format("delta").mode("append").save(str(warehouse.resolve() / CUTS))


def published_cut(spark: SparkSession, warehouse: Path | str, cut: int | None = None) -> Cut:
    """A published cut (None: the newest): its tables, each with its state, and which were left out of it.

    Raises:
        ConfigurationError: no such cut was published.
    """
    root = local_warehouse(warehouse)
    found = newest_cut(spark, root, cut)
    if found is None:
        what = "no cut" if cut is None else f"no cut {cut}"
        raise ConfigurationError(f"reading {root}: {what} was published there", remedy="run `cdcflow merge` first")
    return found


def read_cut(
    spark: SparkSession,
    warehouse: Path | str,
    cut: int | None = None,
    *,
    incomplete: bool = False,
    tables: Collection[str] | None = None,
) -> dict[str, DataFrame]:
    """All tables as they were at one cut (None: the newest), by name. Later merges do not show.

    `tables`: only these. Tables of which rows were still to be read at that cut are left out unless `incomplete`. One
    that was whole once stays, also while it is read again, or when it is no longer captured: `published_cut` tells.
    Besides its own columns a table has `_offset` (the last change of the row) and `_missing` (columns not known yet,
    NULL in a complete table).

    Raises:
        ConfigurationError: no such cut was published.
        HistoryLost: what a table was at that cut is gone (VACUUM, or another table is in its place).
    """
    root = local_warehouse(warehouse)
    found = published_cut(spark, root, cut)
    for name, why in sorted(found.left_out.items()):
        if tables is None or name in tables:
            _log.warning("table left out of the cut", table=name, cut=found.cut, reason=why)
    return {
        name: _pinned(spark, root, found, name)
        for name, table in sorted(found.tables.items())
        if (table.complete or incomplete) and (tables is None or name in tables)
    }


def _pinned(spark: SparkSession, root: Path, cut: Cut, name: str) -> DataFrame:
    table = cut.tables[name]
    path = root.resolve() / table.path
    if why := _lost(spark, path, cut, name):
        raise HistoryLost(
            f"reading cut {cut.cut} of {root}: version {table.version} of table {name} is no longer there: {why}",
            remedy="read a newer cut, or the other tables of this one: read_cut(…, tables=[…])",
        )
    return spark.read.format("delta").option("versionAsOf", table.version).load(str(path))


def _lost(spark: SparkSession, path: Path, cut: Cut, name: str) -> str | None:
    """Why a table of a cut cannot be read; None: it can."""
    table = cut.tables[name]
    there = snapshot(spark, path)
    if there is None:
        return "its folder is gone"
    if (table.id and table.id != there.id) or there.version < table.version:
        return "another table is in its folder, made since then"
    if table.id and table.version == there.version:
        return None
    old = version_of(spark, path, table.version)
    if old is None:
        return "Delta has removed that version from the table's log"
    if not table.id and not 0 < old.transactions.get(f"cdcflow/{cut.log_id}/{name}", 0) <= cut.cut:
        return "another table is in its folder, made since then"  # an older cdcflow did not keep the id
    return "files of that version were removed, as VACUUM does" if files_gone(spark, path, table.version) else None

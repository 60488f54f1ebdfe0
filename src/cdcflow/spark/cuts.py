"""Published cuts: which version of every table shows one and the same moment of the source.

    <warehouse>/_cdcflow_cuts     one row a cut; `tables` maps a table's name to its path, version, and whether its
                                  backfill is done

The row is appended when every table has the cut, so whoever reads tables through it sees all of a moment or nothing.
Maintenance must keep what the kept cuts need: VACUUM with a retention longer than the age of the oldest cut in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError
from cdcflow.spark.delta import committing, snapshot
from cdcflow.spark.paths import CUTS, delta_sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = (
    "cut BIGINT, log_id STRING, `offset` BIGINT, position STRING, commit_clock TIMESTAMP, published TIMESTAMP,"
    " tables MAP<STRING, STRUCT<path: STRING, version: BIGINT, complete: BOOLEAN, generation: BIGINT>>"
)


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table in a cut. `generation`: the newest backfill whose sweep it has seen (0: none)."""

    path: str
    version: int
    complete: bool
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A published cut. `commit_clock` is in microseconds since 1970 UTC."""

    cut: int
    log_id: str
    offset: int
    position: str
    commit_clock: int
    tables: Mapping[str, CutTable]


def newest_cut(spark: SparkSession, warehouse: Path, cut: int | None = None) -> Cut | None:
    """The newest published cut, or the one of that number; None where there is none."""
    if snapshot(spark, warehouse.resolve() / CUTS) is None:
        return None
    rows = spark.table(delta_sql(warehouse, CUTS))
    if cut is not None:
        rows = rows.where(f"cut = {int(cut)}")
    found = (
        rows.selectExpr(
            "cut", "log_id", "`offset`", "position", "unix_micros(commit_clock) clock", "tables", "published"
        )
        .orderBy("cut", "published", ascending=False)
        .limit(1)
        .collect()
    )
    if not found:
        return None
    row = found[0]
    tables = {n: CutTable(t.path, t.version, t.complete, t.generation) for n, t in row.tables.items()}
    return Cut(row.cut, row.log_id, row["offset"], row.position, row.clock, tables)


def publish(spark: SparkSession, warehouse: Path, cut: Cut) -> None:
    """Append the cut. One that is published again (a backfill was found to be done) replaces itself for readers."""
    table = delta_sql(warehouse, CUTS)
    metadata = {"log": cut.log_id, "cut": cut.cut}
    if snapshot(spark, warehouse.resolve() / CUTS) is None:
        with committing(spark, metadata):
            spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({_COLUMNS}) USING delta")
    clock = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=cut.commit_clock)
    tables = {n: (t.path, t.version, t.complete, t.generation) for n, t in cut.tables.items()}
    row = (cut.cut, cut.log_id, cut.offset, cut.position, clock, datetime.now(UTC), tables)
    frame = spark.createDataFrame([row], _COLUMNS).coalesce(1)
    with committing(spark, metadata):
        frame.write.format("delta").mode("append").save(str(warehouse.resolve() / CUTS))


def read_cut(
    spark: SparkSession, warehouse: Path | str, cut: int | None = None, *, incomplete: bool = False
) -> dict[str, DataFrame]:
    """All tables as they were at one cut (None: the newest), by name. Later merges do not show.

    Tables whose backfill was not done at that cut are left out unless `incomplete`: their rows are not all there.
    Besides its own columns a table has `_offset` (the last change of the row) and `_missing` (columns not known yet,
    NULL in a complete table).

    Raises:
        ConfigurationError: no such cut was published.
    """
    root = Path(warehouse)
    found = newest_cut(spark, root, cut)
    if found is None:
        what = "no cut" if cut is None else f"no cut {cut}"
        raise ConfigurationError(f"reading {root}: {what} was published there", remedy="run `cdcflow merge` first")
    return {
        name: spark.read.format("delta").option("versionAsOf", table.version).load(str(root.resolve() / table.path))
        for name, table in sorted(found.tables.items())
        if table.complete or incomplete
    }

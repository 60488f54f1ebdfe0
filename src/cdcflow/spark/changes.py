"""The view of changes that a merge reduces: Parquet files of several shapes under the names of `merge.reduce`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import InvariantViolated
from cdcflow.merge import moves
from cdcflow.merge.reduce import Layout, Mask, projection, read_schema
from cdcflow.merge.types import DECIMAL_TEXT
from cdcflow.model.change import TRUNCATE
from cdcflow.model.table import OFFSET, OP
from cdcflow.spark.segments import InputFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class View:
    """A temporary view of changes, and the sets of columns that they leave unchanged."""

    name: str
    masks: frozenset[Mask]


def last_truncate(spark: SparkSession, files: Sequence[InputFile]) -> int:
    """The offset of the newest truncate; 0 where there is none."""
    with_one = [f for f in files if f.ops.get(TRUNCATE)]
    if not with_one:
        return 0
    rows = _read(spark, f"{OFFSET} bigint, {OP} string", with_one).where(f"{OP} = '{TRUNCATE}'")
    # A compacted file may have one that lies before the range.
    return int(rows.agg({OFFSET: "max"}).collect()[0][0] or 0)


@contextmanager
def view(
    spark: SparkSession, layout: Layout, files: Sequence[InputFile], after: int, table: str | None
) -> Iterator[View]:
    """Changes behind offset `after`, key changes completed. `table` None: the table holds nothing from before."""
    number = next(_numbers)
    names: list[str] = []

    def named(frame: DataFrame, what: str) -> str:
        name = f"cdcflow_{what}_{number}"
        frame.createOrReplaceTempView(name)
        names.append(name)
        return name

    moved = any(f.file.moved and f.file.partial for f in files)
    frames = []
    for version, shape in enumerate(layout.shapes):
        own = [f for f in files if f.shape == shape and f.file.last_offset > after]
        if own:
            expressions = projection(layout, version, moved=moved)
            if any(DECIMAL_TEXT in e for e in expressions):
                _register_decimal_text(spark)
            rows = _read(spark, read_schema(shape, moved=moved), own).where(f"{OFFSET} > {after} AND {OP} <> 't'")
            frames.append(rows.selectExpr(*expressions))
    try:
        if not frames:
            # The range ends with a truncate: nothing lives, but the table must still be emptied.
            empty = _read(spark, read_schema(layout.shapes[-1], moved=moved), list(files)).where("false")
            frames = [empty.selectExpr(*projection(layout, len(layout.shapes) - 1, moved=moved))]
        changes = reduce(lambda a, b: a.unionByName(b), frames)
        name = named(changes, "changes")
        masks: frozenset[Mask] = frozenset()
        if any(f.file.partial for f in files):
            masks = _masks(spark, name)
        if moved and masks:
            whole = _completed(spark, layout, masks, name, table, named)
            name = named(whole, "completed")
            masks = _masks(spark, name)
        yield View(name, masks)
    finally:
        for temporary in names:
            spark.catalog.dropTempView(temporary)


def _completed(
    spark: SparkSession,
    layout: Layout,
    masks: frozenset[Mask],
    changes: str,
    table: str | None,
    named: Callable[[DataFrame, str], str],
) -> DataFrame:
    """Follow key changes to where the columns that they left unchanged have their values (see `merge.moves`)."""
    columns = sorted(frozenset[int]().union(*masks))
    moved = named(spark.sql(moves.moves(layout, changes)).localCheckpoint(), "moves")
    ended = named(spark.sql(moves.ended(layout, changes, moved)), "ended")
    lives = named(spark.sql(moves.lives(layout, columns, changes, moved)), "lives")
    known = spark.sql(moves.first_round(layout, columns, ended, lives, table)).localCheckpoint()
    name = named(known, "known")
    while known.where("parent IS NOT NULL").limit(1).count():
        known = spark.sql(moves.next_round(columns, name)).localCheckpoint()
        name = named(known, "known")
    return spark.sql(moves.completed(layout, columns, changes, name))


def _masks(spark: SparkSession, name: str) -> frozenset[Mask]:
    """The distinct sets of unchanged columns (positions, no values)."""
    rows = spark.table(name).where("op <> 'd' AND m IS NOT NULL").selectExpr("array_sort(m) AS m").distinct().collect()
    return frozenset(frozenset(row.m) for row in rows)


def _read(spark: SparkSession, schema: str, files: Sequence[InputFile]) -> DataFrame:
    hidden = [f.path for f in files if Path(f.path).name[0] in "_."]
    if hidden:
        raise InvariantViolated(f"reading {hidden[0]}: Spark takes it for a hidden file and would read nothing")
    rows = spark.read.schema(schema).parquet(*(_literal(f.path) for f in files))
    # Only the oldest segment of a range can begin before it, and then no other row is as old.
    after = max((f.after for f in files), default=0)
    return rows.where(f"{OFFSET} > {after}") if after else rows


def _literal(path: str) -> str:
    """Spark takes a path for a pattern; this one means itself."""
    return "".join(f"\\{c}" if c in "\\[]{}*?" else c for c in path)


def _register_decimal_text(spark: SparkSession) -> None:
    def text(content: bytes | None, scale: int) -> str | None:
        if content is None:
            return None
        number = int.from_bytes(content, "big", signed=True)
        digits = str(abs(number)).rjust(scale + 1, "0")
        whole, rest = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
        return ("-" if number < 0 else "") + whole + (f".{rest}" if rest else "")

    spark.udf.register(DECIMAL_TEXT, text, "string")

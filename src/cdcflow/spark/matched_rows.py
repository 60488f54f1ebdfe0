"""The part of a merge by marks that every format needs: the table's rows that a range of changes concerns, read
once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cdcflow.spark.runtime.views import Views
from cdcflow.tables.merge import removed_and_added
from cdcflow.tables.merge.statement import Folding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BROADCAST_ROWS_MAX = 1_000_000
"""At most this many keys are sent to every executor. If there are more, they are joined with the table's keys by
sorting both."""


class NewerRows(Exception):
    """The error for a table that has rows which are newer than changes of the range. Nothing was committed."""


def going(
    spark: SparkSession, views: Views, folding: Folding, rows: Callable[[Sequence[str]], DataFrame]
) -> tuple[str, str]:
    """Return the names of two views: of the reduced range, and of the rows to delete (see
    `tables.merge.removed_and_added`). Both are stored. `rows` returns columns of the table's rows, and the location of
    each.

    Raises:
        NewerRows: rows of the table are newer than their changes; a MERGE does not touch those rows.
    """
    target, families, ended = folding.layout.target, folding.families, folding.layout.ending_positions
    reduced = views.of(spark.sql(folding.reduced_query(families)), "reduced", keep=True)
    of_table = views.of(rows(removed_and_added.table_columns(target, families, ended)), "rows")
    broadcast = folding.count <= BROADCAST_ROWS_MAX
    found = removed_and_added.going(
        target, families, of_table, reduced, limits=folding.limits, broadcast=broadcast, ended=ended
    )
    name = views.of(spark.sql(found), "going", keep=True)
    if spark.table(name).selectExpr("count_if(newer) AS n").collect()[0].n:
        raise NewerRows
    return reduced, name

"""Change rows of a large Iceberg table as two commits that become visible at once.

    main ──●─────────────────────────────●──▶   moved from the first to the last in one step
           └── deletes ──▶ inserts ──────┘      a temporary branch

A MERGE that may insert rows is an outer join: Spark reads whole rows of all the table's files and shuffles them. A join
that only deletes rows sends the changes' keys to the table's rows, and reads only their key. No reader of `main` sees
the state between the two commits, and if another process has changed `main` in the meantime, it is not moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdcflow.model.sqltypes import name_sql
from cdcflow.model.table import OFFSET
from cdcflow.spark import matched_rows
from cdcflow.spark.matched_rows import BROADCAST_ROWS_MAX, NewerRows
from cdcflow.spark.runtime.views import Views
from cdcflow.tables.merge import removed_and_added
from cdcflow.tables.merge.removed_and_added import FILE, ROW
from cdcflow.tables.merge.statement import Bounds, Folding, is_integer
from cdcflow.tables.merge.target import TargetColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_MIN = 1_000_000
"""From this number of rows that a MERGE would read, two commits on a branch cost less than the MERGE."""


class BranchMoved(Exception):
    """The error when a branch has other commits than the expected one, or the table is no longer the one that the
    branch began with."""


@dataclass(frozen=True, slots=True)
class TableExtent:
    """Statistics of a table's files: about how many rows a MERGE of a range would read, and the latest offset of any
    row (`None` if a file does not have it)."""

    rows: int
    newest: int | None


def extent(spark: SparkSession, table: str, folding: Folding) -> TableExtent:
    """Compute the extent from the bounds in the table's manifests. If the range's keys span only a part of a file's
    keys, the file is assumed to be sorted by the key, which holds for growing keys: a MERGE then reads only that part
    of it."""
    key, limits = folding.layout.target.columns[folding.layout.key[0]], folding.limits
    part = "1" if limits is None else _part(key, limits)
    newest = f"readable_metrics.{OFFSET}.upper_bound"
    (found,) = (
        spark.table(f"{table}.data_files")
        .selectExpr(
            f"CAST(coalesce(sum(record_count * {part}), 0) AS bigint) AS count",
            f"IF(count_if({newest} IS NULL) > 0, NULL, max({newest})) AS newest",
        )
        .collect()
    )
    return TableExtent(int(found[0]), None if found[1] is None else int(found[1]))


def _part(key: TargetColumn, limits: Bounds) -> str:
    """Return the share of a file's rows that is within bounds of the first key column, in SQL; 1 if unknown."""
    low, high = (f"readable_metrics.{name_sql(key.name)}.{end}_bound" for end in ("lower", "upper"))
    if not is_integer(key.type):
        return f"coalesce(IF({high} >= {limits.least} AND {low} <= {limits.greatest}, 1, 0), 1)"
    low, high, least, greatest = (f"CAST({end} AS double)" for end in (low, high, limits.least, limits.greatest))
    within = f"least({high}, {greatest}) - greatest({low}, {least}) + 1"
    return f"coalesce(greatest(0, ({within}) / ({high} - {low} + 1)), 1)"


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes on a branch: `gone` is the statement that deletes rows; `come` is the query of the inserted rows,
    whose columns are named as the table's."""

    gone: str
    come: str


def changes(
    spark: SparkSession, views: Views, table: str, branch: str, folding: Folding, newest: int | None
) -> Changes:
    """Return the statements that merge a range by key (see `Folding.is_by_key`) on a branch of a table. `newest`: the
    latest offset of any row, from `extent`.

    Raises:
        NewerRows: rows of the table may be newer than changes of the range.
    """
    limits, broadcast = folding.limits, folding.count <= BROADCAST_ROWS_MAX
    target, families, ended = folding.layout.target, folding.families, folding.layout.ending_positions
    names = [c.name for c in target.columns]

    def removal(keys: str, key: dict[str, str]) -> str:
        return removed_and_added.removal(branch, key, keys, limits=limits, broadcast=broadcast)

    if (replaced := folding.replaced_rows) is not None:
        return Changes(removal(replaced.rows, dict(replaced.key)), folding.rows())
    key = {names[i]: f"c{i}" for i in target.key_positions}
    if removed_and_added.needs_values(families):
        reduced, going = matched_rows.going(spark, views, folding, lambda columns: _rows(spark, table, columns))
        return Changes(removal(reduced, key), removed_and_added.coming(target, families, reduced, going, ended))
    if newest is None or newest >= folding.first:
        raise NewerRows
    reduced = views.of(spark.sql(folding.reduced_query(families)), "reduced", keep=True)
    return Changes(removal(reduced, key), removed_and_added.coming(target, families, reduced, "", ended))


def _rows(spark: SparkSession, table: str, columns: Sequence[str]) -> DataFrame:
    """Return columns of the table's rows, without the rows' locations: a row is found again by its key."""
    return spark.table(table).selectExpr(*map(name_sql, columns), f"CAST(NULL AS string) AS {FILE}", f"_pos AS {ROW}")


class Branch:
    """A branch of a table, which exists while rows are changed on it."""

    def __init__(self, table: Any, name: str, begun: int) -> None:  # Any: py4j gives whatever the other side has
        """`begun`: the id of the snapshot that the branch begins with."""
        self._table = table
        self.name = name
        self._ids = [begun]

    def take(self, commit: Callable[[], object]) -> None:
        """Let a statement commit to the branch, if it changes anything.

        Raises:
            BranchMoved: something else was committed to it, too.
        """
        commit()
        self._table.refresh()
        head = self._head()
        if head != self._ids[-1]:
            if int(self._table.snapshot(head).parentId()) != self._ids[-1]:
                raise BranchMoved(f"another process has committed to branch {self.name}")
            self._ids.append(head)

    def become_main(self) -> int:
        """Move the table to the branch's state. Return the id of the table's latest snapshot.

        Raises:
            BranchMoved: the table was changed in the meantime.
        """
        self._table.refresh()
        if int(self._table.currentSnapshot().snapshotId()) != self._ids[0] or self._head() != self._ids[-1]:
            raise BranchMoved(f"the table was changed by another process while branch {self.name} was")
        try:
            change = self._table.manageSnapshots().fastForwardBranch("main", self.name).removeBranch(self.name)
        except Exception as error:
            if "Cannot fast-forward" in str(error):
                raise BranchMoved(str(error)) from error
            raise
        # A later commit of another process makes this fail: it replaces the metadata that were read above.
        _commit(change)
        return self._ids[-1]

    def _head(self) -> int:
        ref = self._table.refs().get(self.name)
        if ref is None:
            raise BranchMoved(f"another process has removed branch {self.name}")
        return int(ref.snapshotId())


def _commit(change: Any) -> None:
    change.commit()


@contextmanager
def open_branch(table: Any, name: str, begun: int) -> Iterator[Branch]:
    """Yield a new branch of a table, starting at the snapshot from which the change was computed: `table` itself may
    already have a later one. The branch is removed at the end; if the process is killed, the next maintenance removes
    it."""
    table.manageSnapshots().createBranch(name, begun).commit()
    try:
        yield Branch(table, name, begun)
    finally:
        _end(table, name)


def _end(table: Any, name: str) -> None:
    table.refresh()
    if table.refs().get(name) is not None:
        table.manageSnapshots().removeBranch(name).commit()

"""Changes of a large Iceberg table's rows as two commits that become the table at once.

    main ──●─────────────────────────────●──▶   moved from the first to the last in one step
           └── rows go ──▶ rows come ────┘      a branch of its own, gone after that

A MERGE that may add rows is an outer join: Spark reads whole rows of all the table's files and shuffles them. The join
that only removes rows sends the changes' keys to the table's, of which nothing else is read. Nobody who reads `main`
sees what is between the two, and if somebody else has changed it meanwhile, it is not moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdcflow.merge import marking
from cdcflow.merge.marking import FILE, ROW
from cdcflow.merge.statement import Bounds, Folding, is_integer
from cdcflow.merge.target import TargetColumn
from cdcflow.merge.types import name_sql
from cdcflow.model.table import OFFSET
from cdcflow.spark.formats import marked
from cdcflow.spark.formats.marked import BROADCAST_ROWS_MAX, NewerRows, Views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_MIN = 1_000_000
"""Of so many rows that a MERGE would read, the commits on a branch cost less than it does."""


class BranchMoved(Exception):
    """The branch is not what was committed to it, or the table is not what the branch began with."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What the files of a table say of it: about how many rows a MERGE of a range would read, and the newest offset
    that any row has; None where a file does not say."""

    rows: int
    newest: int | None


def extent(spark: SparkSession, table: str, folding: Folding) -> Extent:
    """From the bounds in the table's manifests. A file of which the range's keys span a part is taken to be in order of
    the key, as it is where keys grow: then a MERGE reads that part of it."""
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
    return Extent(int(found[0]), None if found[1] is None else int(found[1]))


def _part(key: TargetColumn, limits: Bounds) -> str:
    """The share of a file's rows that lies within bounds of the first key column, in SQL; 1 where nobody knows."""
    low, high = (f"readable_metrics.{name_sql(key.name)}.{end}_bound" for end in ("lower", "upper"))
    if not is_integer(key.type):
        return f"coalesce(IF({high} >= {limits.least} AND {low} <= {limits.greatest}, 1, 0), 1)"
    low, high, least, greatest = (f"CAST({end} AS double)" for end in (low, high, limits.least, limits.greatest))
    within = f"least({high}, {greatest}) - greatest({low}, {least}) + 1"
    return f"coalesce(greatest(0, ({within}) / ({high} - {low} + 1)), 1)"


@dataclass(frozen=True, slots=True)
class Changes:
    """`gone` is the statement by which rows go, `come` the query of those that come, its columns named as the
    table's."""

    gone: str
    come: str


def changes(
    spark: SparkSession, views: Views, table: str, branch: str, folding: Folding, newest: int | None
) -> Changes:
    """What brings a range in, by key (see `Folding.is_by_key`), on a branch of a table. `newest`: of `extent`.

    Raises:
        NewerRows: rows of the table may be newer than changes of the range.
    """
    limits, broadcast = folding.limits, folding.count <= BROADCAST_ROWS_MAX
    target, families, ended = folding.layout.target, folding.families, folding.layout.ended
    names = [c.name for c in target.columns]

    def gone(keys: str, key: dict[str, str]) -> str:
        return marking.removal(branch, key, keys, limits=limits, broadcast=broadcast)

    if (replaced := folding.replaced) is not None:
        return Changes(gone(replaced.rows, dict(replaced.key)), folding.rows())
    key = {names[i]: f"c{i}" for i in target.key_positions}
    if marking.needs_values(families):
        reduced, going = marked.going(spark, views, folding, lambda columns: _rows(spark, table, columns))
        return Changes(gone(reduced, key), marking.coming(target, families, reduced, going, ended))
    if newest is None or newest >= folding.first:
        raise NewerRows
    reduced = views.of(spark.sql(folding.reduced(families)), "reduced", keep=True)
    return Changes(gone(reduced, key), marking.coming(target, families, reduced, "", ended))


def _rows(spark: SparkSession, table: str, columns: Sequence[str]) -> DataFrame:
    """Columns of the table's rows. Where a row lies is not needed: it is found again by its key."""
    return spark.table(table).selectExpr(*map(name_sql, columns), f"CAST(NULL AS string) AS {FILE}", f"_pos AS {ROW}")


class Branch:
    """A branch of a table while rows change there."""

    def __init__(self, table: Any, name: str, begun: int) -> None:  # Any: py4j gives whatever the other side has
        """`begun`: the id of the snapshot that it begins with."""
        self._table = table
        self.name = name
        self._ids = [begun]

    def take(self, commit: Callable[[], object]) -> None:
        """Let a statement commit to it, if it changes anything.

        Raises:
            BranchMoved: something else was committed to it, too.
        """
        commit()
        self._table.refresh()
        head = self._head()
        if head != self._ids[-1]:
            if int(self._table.snapshot(head).parentId()) != self._ids[-1]:
                raise BranchMoved(f"somebody else has committed to branch {self.name}")
            self._ids.append(head)

    def become_main(self) -> int:
        """Make the table what the branch is. Returns the id of its newest snapshot.

        Raises:
            BranchMoved: the table was changed meanwhile.
        """
        self._table.refresh()
        if int(self._table.currentSnapshot().snapshotId()) != self._ids[0] or self._head() != self._ids[-1]:
            raise BranchMoved(f"the table was changed by somebody else while branch {self.name} was")
        try:
            change = self._table.manageSnapshots().fastForwardBranch("main", self.name).removeBranch(self.name)
        except Exception as error:
            if "Cannot fast-forward" in str(error):
                raise BranchMoved(str(error)) from error
            raise
        # Whoever has committed since then makes it fail: it replaces the metadata that were looked at.
        _commit(change)
        return self._ids[-1]

    def _head(self) -> int:
        ref = self._table.refs().get(self.name)
        if ref is None:
            raise BranchMoved(f"somebody else has removed branch {self.name}")
        return int(ref.snapshotId())


def _commit(change: Any) -> None:
    change.commit()


@contextmanager
def branched(table: Any, name: str, begun: int) -> Iterator[Branch]:
    """A new branch of a table that begins with this snapshot, the one that the change was worked out for: `table`
    itself may know a newer one by now. It is gone at the end, whatever happens but a kill: what that leaves goes with
    the next upkeep."""
    table.manageSnapshots().createBranch(name, begun).commit()
    try:
        yield Branch(table, name, begun)
    finally:
        _end(table, name)


def _end(table: Any, name: str) -> None:
    table.refresh()
    if table.refs().get(name) is not None:
        table.manageSnapshots().removeBranch(name).commit()

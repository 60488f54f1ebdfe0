"""The merge: what is new in a change log, folded into current-state tables, then published as one cut.

    log       ──cut 41──segment──cut 52──segment──cut 60──▶       newest sealed cut: 60
    orders    at 52   ─────────── (52, 60] ──▶ one commit with (log, orders) = 60
    products  at 60   (a run before this one got that far, then died): nothing to do
    cuts      41 published ───────────────────▶ 60 published, last

Where a table stands is read from the table: its newest commit of ours names the cut, in the same atomic commit as the
rows. So a run that dies anywhere is finished by the next one, a range is never applied twice, and a log that is older
than the table, or another, is refused.

    spark-submit --jars … --conf … -m cdcflow.spark.job --log ./shop-log --warehouse ./warehouse     (docs/merge.md)
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog

from cdcflow.changelog.layout import Layout as LogLayout
from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.merge import statement
from cdcflow.merge.evolution import CannotFollow, Evolution, Target, evolve, rebuilt, seen
from cdcflow.merge.reduce import Layout, counting, families, reduction
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import MISSING, Table, TableId
from cdcflow.spark import changes
from cdcflow.spark.cuts import Cut, CutTable, newest_cut, publish
from cdcflow.spark.delta import Snapshot, committing, edits_since, snapshot
from cdcflow.spark.paths import LEASE, delta_sql, table_path
from cdcflow.spark.segments import InputFile, Range, backfills, offsets_of, present, sealed, shapes_of, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OnEdit = Literal["warn", "stop"]

TABLES_AT_ONCE = 3
"""Much of a small merge is planning and commits on the driver, one thread's work: three tables keep two cores busy."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table of a merge. `changes` counts rows read from the log; 0 with `version` unchanged: nothing was new.
    `edits`: what someone else did to the table's rows since the last published cut."""

    name: str
    changes: int
    version: int
    complete: bool
    seconds: float
    edits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did. `cut` 0: the log has no sealed segment yet. `published`: this run published the cut."""

    cut: int
    offset: int
    published: bool
    seconds: float
    tables: tuple[TableReport, ...]


def merge(
    spark: SparkSession,
    log: LogLayout | Path | str,
    warehouse: Path | str,
    tables: Collection[str] | None = None,
    *,
    on_edit: OnEdit = "warn",
    newest: Checkpoint | None = None,
    origin: Mapping[str, object] | None = None,
) -> MergeReport:
    """Bring every current-state table to the newest sealed cut of the log, then publish the cut.

    `log`: its directory, or its layout where segments lie in an object store; what has to be fetched from there is
    merged in several steps, so that the local disk holds little of it at one time. `tables`: only these, by name
    (`schema.name`); the cut is then published only if no other table has changes up to it. `on_edit`: what to do when
    somebody else changed a table's rows (hard case G36).
    Where the directory is the history of a log in Kafka, `newest` is that log's newest checkpoint, and `origin` the
    place in its topic where the history ends, which each table's commit then tells (see `cdcflow.spark.kafka`).

    Raises:
        SinkUnavailable: another merge works in this warehouse; try again later.
        ConfigurationError: the tables belong to another log or are ahead of this one, or cannot follow a schema
            change; the message says what to do.
        HistoryLost: the log no longer has what a table needs.
        InvariantViolated: a row of a table whose backfill is done misses columns.
    """
    root = Path(warehouse)
    began = time.monotonic()
    with _lease(root):
        whole = sealed(LogLayout.of(log))
        if whole.newest is None:
            return MergeReport(0, 0, False, time.monotonic() - began, ())
        before = newest_cut(spark, root)
        reports: dict[str, TableReport] = {}
        published = False
        for step in whole.steps(0 if before is None else before.cut):
            run = _Run(spark, step, root, on_edit, whole.checkpoint.cut, newest, origin or {})
            found = run.tables(_known(tables, step, whole))
            published |= run.publish(found)
            reports |= {r.name: _both(reports.get(r.name), r) for r in found}
    last = whole.newest
    ordered = tuple(reports[name] for name in sorted(reports))
    return MergeReport(last.last_cut, last.last_offset, published, time.monotonic() - began, ordered)


def _known(tables: Collection[str] | None, step: Range, whole: Range) -> Collection[str] | None:
    """Of the wanted tables those that have rows as early as this step."""
    if tables is None or step.segments == whole.segments:
        return tables
    known = step.tables()
    return [name for name in tables if name in known]


def _both(before: TableReport | None, after: TableReport) -> TableReport:
    """One report of a table over several steps."""
    if before is None:
        return after
    return replace(
        after,
        changes=before.changes + after.changes,
        seconds=before.seconds + after.seconds,
        edits=(*before.edits, *after.edits),
    )


class _Run:
    """One merge: the log's newest cut, and what was published before."""

    def __init__(
        self,
        spark: SparkSession,
        log: Range,
        warehouse: Path,
        on_edit: OnEdit,
        last_cut: int,
        newest: Checkpoint | None,
        origin: Mapping[str, object],
    ) -> None:
        self._spark = spark
        self._log = log
        self._warehouse = warehouse
        self._on_edit = on_edit
        self._checkpoint = log.checkpoint
        self._cut = self._checkpoint.cut
        self._last_cut = last_cut
        self._ahead: set[TableId] = set()
        self._backfills = backfills(log, newest)
        self._origin = origin
        self._published = newest_cut(spark, warehouse)
        self._check_log()

    def _check_log(self) -> None:
        before = self._published
        if before is None:
            return
        if before.log_id != self._log.log_id:
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {self._warehouse}: the tables there come from another log"
                f" ({before.log_id}, this one is {self._log.log_id})",
                remedy="merge into another warehouse",
            )
        if before.cut > self._last_cut:
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {self._warehouse}: the log ends at cut {self._last_cut},"
                f" the tables have cut {before.cut} already, so this is an older copy of the log",
                remedy="merge the newest log, or into another warehouse",
            )

    def tables(self, wanted: Collection[str] | None) -> tuple[TableReport, ...]:
        known = self._log.tables()
        unknown = sorted(set(wanted or ()) - set(known))
        if unknown:
            raise ConfigurationError(
                f"merging {self._log.layout.name}: it has no rows of table {', '.join(unknown)}",
                remedy=f"name one of: {', '.join(sorted(known))}",
            )
        chosen = [known[n] for n in sorted(known) if wanted is None or n in wanted]
        with ThreadPoolExecutor(TABLES_AT_ONCE) as pool:
            return tuple(pool.map(self._table, chosen))

    def _table(self, table: TableId) -> TableReport:
        began = time.monotonic()
        path = table_path(table)
        # A session of its own: what marks a commit as ours is a session's setting (see `delta.committing`).
        spark = self._spark.newSession()
        before = snapshot(spark, self._warehouse.resolve() / path)
        start = self._position(table, before)
        if start > self._cut:
            self._ahead.add(table)  # a merge that died had come further with it than this step goes
        files = self._log.files(table, start)
        if start < self._cut:
            self._log.check_reaches(table, start, self._backfill_number(table, "since"))
        edits = self._edits(spark, table, before)
        if files:
            _TableMerge(self, spark, table, before, files, start).run()
        elif before is not None and table not in self._ahead and self._sweep_due(table):
            _TableMerge(self, spark, table, before, files, start).sweep()
        after = snapshot(spark, self._warehouse.resolve() / path)
        if after is None:
            raise InvariantViolated(f"merging {table}: no table came of {len(files)} files of the log")
        report = TableReport(
            name=str(table),
            changes=sum(f.file.rows for f in files),
            version=after.version,
            complete=self._backfill(table).get("state") == "done",
            seconds=time.monotonic() - began,
            edits=tuple(edits),
        )
        if report.changes:
            _log.info("table merged", table=report.name, changes=report.changes, seconds=round(report.seconds, 2))
        return report

    def publish(self, reports: tuple[TableReport, ...]) -> bool:
        """Publish the cut unless it says nothing new, or unless a table has not got there."""
        if self._ahead:
            return False
        merged = {r.name: r for r in reports}
        known = self._log.tables()
        if not all(n in merged or self._untouched(t) for n, t in known.items()):
            return False
        before = self._published
        tables = dict(before.tables) if before is not None else {}
        for name, report in merged.items():
            table = known[name]
            if report.complete:
                self._check_whole(table)
            generation = self._backfill_number(table, "generation") if report.complete else self._swept(table)
            tables[name] = CutTable(table_path(table), report.version, report.complete, generation)
        if before is not None and before.cut == self._cut and dict(before.tables) == tables:
            return False
        cut = Cut(
            cut=self._cut,
            log_id=self._log.log_id,
            offset=self._checkpoint.next_offset - 1,
            position=self._checkpoint.position or "",
            commit_clock=self._checkpoint.commit_clock,
            tables=tables,
        )
        publish(self._spark, self._warehouse, cut)
        _log.info("cut published", cut=self._cut, tables=len(tables))
        return True

    def _untouched(self, table: TableId) -> bool:
        entry = self._entry(table)
        return entry is not None and self._published is not None and not self._log.files(table, self._published.cut)

    def _entry(self, table: TableId) -> CutTable | None:
        return None if self._published is None else self._published.tables.get(str(table))

    def _backfill(self, table: TableId) -> Mapping[str, object]:
        return self._backfills.get(str(table), {})

    def _backfill_number(self, table: TableId, field: str) -> int:
        found = self._backfill(table).get(field, 0)
        return found if isinstance(found, int) else 0

    def _swept(self, table: TableId) -> int:
        entry = self._entry(table)
        return 0 if entry is None else entry.generation

    def _sweep_due(self, table: TableId) -> bool:
        done = self._backfill(table).get("state") == "done"
        return done and self._backfill_number(table, "generation") > self._swept(table)

    def _app(self, table: TableId) -> str:
        return f"cdcflow/{self._log.log_id}/{table}"

    def _position(self, table: TableId, before: Snapshot | None) -> int:
        """The cut that the table has: what its own commits say, or the published cut whose version it still is."""
        entry = self._entry(table)
        if before is None:
            return 0
        ours = self._app(table)
        strangers = [
            app
            for app in before.transactions
            if app.startswith("cdcflow/") and app != ours and not app.startswith(f"{ours}/")
        ]
        source = json.loads(before.properties.get(statement.IDENTITY_PROPERTY, "null"))
        if strangers or source != self._source(table):
            raise ConfigurationError(
                f"merging {self._log.layout.name} into table {table} of {self._warehouse}: that table was not made from"
                f" table {table} of this log",
                remedy="merge into another warehouse, or move the table's folder away",
            )
        done = before.transactions.get(ours, 0)
        if entry is not None and self._published is not None and before.version >= entry.version:
            done = max(done, self._published.cut)
        if done > self._last_cut:
            raise ConfigurationError(
                f"merging {self._log.layout.name} into {table}: the log ends at cut {self._last_cut},"
                f" the table has cut {done} already, so this is an older copy of the log",
                remedy="merge the newest log, or into another warehouse",
            )
        return done

    def _source(self, table: TableId) -> dict[str, str]:
        return {"log": self._log.log_id, "schema": table.schema, "name": table.name}

    def _edits(self, spark: SparkSession, table: TableId, before: Snapshot | None) -> list[str]:
        entry = self._entry(table)
        if before is None or entry is None or before.version == entry.version:
            return []
        found = edits_since(spark, delta_sql(self._warehouse, entry.path), entry.version)
        if found and self._on_edit == "stop":
            raise ConfigurationError(
                f"merging into {table}: somebody else changed its rows ({', '.join(found)})",
                remedy=f"check the table against its source; to build it anew, move its folder away and run"
                f" `cdcflow backfill {table}`",
            )
        if found:
            _log.warning("table changed by somebody else", table=str(table), edits=found)
        return found

    def _check_whole(self, table: TableId) -> None:
        """Once a table's backfill is done no row may miss a column. Asked only if one could have come or was there."""
        entry = self._entry(table)
        if entry is not None and entry.complete and self._published is not None:
            since = self._log.files(table, self._published.cut)
            if not any(f.file.partial for f in since):
                return
        sql = delta_sql(self._warehouse, table_path(table))
        count = self._spark.table(sql).where(f"{MISSING} IS NOT NULL").count()
        if count:
            raise InvariantViolated(
                f"merging {table} up to cut {self._cut}: its backfill is done, and {count} rows miss columns"
            )


class _TableMerge:
    """One table, one range."""

    def __init__(
        self,
        run: _Run,
        spark: SparkSession,
        table: TableId,
        before: Snapshot | None,
        files: list[InputFile],
        start: int,
    ) -> None:
        self._run = run
        self._spark = spark
        self._table = table
        self._files = files
        self._before = before
        self._start = start
        self._sql = delta_sql(run._warehouse, table_path(table))
        self._sweep = run._backfill_number(table, "since") if run._sweep_due(table) else 0

    def sweep(self) -> None:
        """Nothing new, but a backfill is done: remove what it did not find."""
        app = f"{self._run._app(self._table)}/sweep"
        generation = self._run._backfill_number(self._table, "generation")
        with committing(self._spark, self._metadata(), app, generation):
            self._spark.sql(statement.sweep(self._sql, self._sweep))

    def run(self) -> None:
        store = self._run._log.layout.store
        with tempfile.TemporaryDirectory(prefix="cdcflow-merge-", dir=None if store is None else store.room) as room:
            files = present(self._run._log.layout, self._files, Path(room))
            self._files = [visible(f, Path(room)) for f in files]
            self._merge()

    def _merge(self) -> None:
        shapes = shapes_of(self._files)
        target = None if self._before is None else _described(self._table, self._before, shapes)
        evolution = evolve(target, shapes, self._start)
        self._evolve(evolution)
        layout = Layout.of(evolution, shapes)
        keyed = bool(evolution.target.key)
        living = [f for f in self._files if f.shape.incarnation == evolution.target.incarnation]
        after = changes.last_truncate(self._spark, living)
        if evolution.fresh:
            after = max(after, offsets_of(living)[0] - 1)
        emptied = after > 0 or self._before is None
        sweep = max(self._sweep, after + 1 if after else 0)
        with changes.view(self._spark, layout, living, after, None if emptied else self._sql) as found:
            kinds = families(layout, found.masks)
            if keyed:
                reduced = reduction(layout, kinds, found.name, emptied=emptied, sweep_before=sweep)
                limits = statement.bounds(
                    evolution.target.columns[layout.key[0]].type, [(f.file.key_min, f.file.key_max) for f in living]
                )
                merging = statement.merge(
                    self._sql, evolution.target, kinds, f"({reduced})", sweep_before=sweep, limits=limits
                )
            else:
                counted = f"({counting(layout, found.name)})"
                merging = statement.merge_counted(
                    self._sql, evolution.target, counted, emptied=emptied, sweep_before=sweep
                )
            with self._commit():
                self._spark.sql(merging)

    def _evolve(self, evolution: Evolution) -> None:
        """Bring the table into the shape that the range needs."""
        run = self._run
        if evolution.before is None:
            source = json.dumps(run._source(self._table), separators=(",", ":"))
            with committing(self._spark, self._metadata()):
                self._spark.sql(statement.create(self._sql, evolution.target, source))
        for act in evolution.acts():
            once = statement.transaction(act, evolution.target.incarnation)
            app = f"{run._app(self._table)}/{once}" if once else ""
            for sql in statement.act(self._sql, act):
                with committing(self._spark, self._metadata(), app, 1 if once else 0):
                    self._spark.sql(sql)

    def _commit(self) -> AbstractContextManager[None]:
        return committing(self._spark, self._metadata(), self._run._app(self._table), self._run._cut)

    def _metadata(self) -> dict[str, object]:
        first, last = offsets_of(self._files)
        return {
            "log": self._run._log.log_id,
            "table": str(self._table),
            "cut": self._run._cut,
            "offsets": [first, last],
            "generation": self._run._backfill(self._table).get("generation", 0) if self._sweep else 0,
            **self._run._origin,
        }


def _described(table: TableId, before: Snapshot, shapes: Sequence[Table]) -> Target:
    """What the table looks like: its own description, with the names that its columns have by now."""
    text = before.properties.get(statement.TARGET_PROPERTY)
    if text is None:
        raise CannotFollow(
            f"merging into {table}: the table's property {statement.TARGET_PROPERTY} is gone, which says what its"
            " columns are",
            remedy=rebuilt(table),
        )
    return seen(Target.from_json(text), before.columns, table, shapes)


@contextmanager
def _lease(warehouse: Path) -> Iterator[None]:
    """One merge a warehouse at a time (hard case G13). The lock goes when the process goes, whatever happens to it."""
    warehouse.mkdir(parents=True, exist_ok=True)
    with (warehouse / LEASE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SinkUnavailable(
                f"merging into {warehouse}: another merge works there", remedy="try again when it is done"
            ) from None
        yield


def main(arguments: list[str] | None = None) -> int:
    """`python -m cdcflow.spark.job`, and what spark-submit runs."""
    parser = argparse.ArgumentParser(prog="cdcflow.spark.job", description="Merge a change log into Delta tables.")
    parser.add_argument("--log", required=True, type=Path, help="the log's directory")
    parser.add_argument("--warehouse", required=True, type=Path, help="where the tables are")
    parser.add_argument("--table", action="append", help="only this table (may be given more than once)")
    parser.add_argument("--on-edit", choices=("warn", "stop"), default="warn")
    chosen = parser.parse_args(arguments)
    from pyspark.sql import SparkSession

    from cdcflow.spark.session import session

    # Under spark-submit the session's settings are the submitter's.
    spark = SparkSession.builder.getOrCreate() if "PYSPARK_GATEWAY_PORT" in os.environ else session()
    try:
        report = merge(spark, chosen.log, chosen.warehouse, chosen.table, on_edit=chosen.on_edit)
    except CdcflowError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    finally:
        spark.stop()
    sys.stdout.write(json.dumps(asdict(report)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

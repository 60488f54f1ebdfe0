"""A daemon that captures what a suite does, and the comparison of every captured table with its log.

How a daemon is started, awaited and freed of a stop by its remedy is the DDL fuzzer's (`tests.ddlfuzz.execute.Run`).
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import yaml
from tests.ddlfuzz.daemon import Stop
from tests.ddlfuzz.draw import Case
from tests.ddlfuzz.execute import POLL_S, Failure, NothingToCapture, Run
from tests.ddlfuzz.model import Server
from tests.suites.logged import LogSoFar
from tests.suites.onmysql import OnSuite
from tests.suites.onpostgres import OnRegression
from tests.suites.values import of_the_log

from cdcflow import wiring
from cdcflow.capture.interleave.progress import Progress
from cdcflow.config import load
from cdcflow.model.table import Table, TableId
from cdcflow.testing.folded import Unmergeable

On = OnSuite | OnRegression
MODES = ("running", "stopped", "killed")
COMPARED_BEFORE_DROPS = 0.15
IMPATIENCE_S = 8.0
"""How long a comparison in the middle of a test waits for the log."""
_TABLE = re.compile(r"TABLE `((?:[^`]|``)+)`\.`((?:[^`]|``)+)`")
_PATTERN = re.compile(r"write !(\w+)\.(\w+)\)")
_DROPS = re.compile(r"^\s*(?:DROP\s+(?:TABLE|DATABASE|SCHEMA)|RENAME\s+TABLE|TRUNCATE)\b", re.IGNORECASE)


class Follower(Run):
    """One daemon and its log. `mode`: whether it runs all the time, is stopped and started in between, or killed."""

    stops_max = 40  # ten files create many tables

    def __init__(self, server: Server, beside: On, mode: str, dice: random.Random) -> None:
        # Each poll reads the catalog of all tables, and a backfill's chunks wait for it.
        super().__init__(
            Case(server, (), {"look": "1" if server != "postgres" else "4"}),
            beside,
            Path(tempfile.mkdtemp(prefix="cdcflow-suite-")),
        )
        self.on = beside
        self.mode = mode
        self.dice = dice
        self.compared = 0
        self.cascaded: set[TableId] = set()
        """Tables with a difference that a foreign key may have made, which MariaDB does not log."""
        self.is_cascade_excused = True
        self.read_after_cascades = 0
        self.equal: set[TableId] = set()
        self.logged = LogSoFar()
        self.unmergeable: dict[TableId, str] = {}
        """Tables whose shapes only a new table can hold: the merge stops at them, and says to read them again."""
        self.read_again: set[TableId] = set()

    def start(self) -> None:
        self._start()

    def in_between(self) -> None:
        """Called again and again while a file runs: the daemon may be stopped, killed or started."""
        time.sleep(0.05)
        if self.mode != "running" and self.dice.random() < 0.02:
            self._turn()

    def before(self, statement: str) -> None:
        """Called before each statement: the daemon may be stopped, killed or started, and tables are compared before
        they are dropped."""
        # A new statement may create a different table under a known name: its stops are new, too.
        self.told, self.repeated = "", 0
        self.mended.clear()
        if self.mode != "running" and self.dice.random() < (0.02 if self.daemon is not None else 0.1):
            self._turn()
        if self.daemon is not None and _DROPS.match(statement) and self.dice.random() < COMPARED_BEFORE_DROPS:
            self.compare_if_possible()

    def compare_if_possible(self) -> None:
        """Compare, in the middle of a test, the tables that are already read. A wait in vain is no failure then: it may
        be the test that holds the lock."""
        patience_s, self.patience_s = self.patience_s, IMPATIENCE_S
        try:
            self._start()
            self._wait(())
            self._compare_read(strict=False)
        except NothingToCapture:
            self.daemon = None
        except Failure as found:
            if found.sort != "hang":
                raise
        except Exception as error:
            if not self.on.is_lock_wait(error):
                raise
        finally:
            self.patience_s = patience_s

    def compare(self) -> None:
        """Wait until the log has everything and all tables are read, and compare each of them.

        Raises:
            Failure: a difference, a stop that its remedy does not end, or a wait in vain.
        """
        self._start()
        try:
            try:
                self._compare_all()
            except Failure as found:
                if found.sort != "difference":
                    raise
                # The daemon learns from its next read of the list that a table was recreated under its name.
                self._wait_for_a_list_read()
                self._compare_all()
            if self.unmergeable:
                self._read_again()
            if self.cascaded:
                self._read_cascaded()
        except NothingToCapture:
            self.daemon = None

    def _compare_all(self) -> None:
        self.equal.clear()
        self.cascaded.clear()
        self._wait(tuple(self.on.columns()))
        if older := self._compare_read(strict=False):
            for table in older:
                # A shape shows with the first row after it.
                self.on.touch(table)
            self._wait(tuple(self.on.columns()))
        self._compare_read(strict=True, equal=frozenset(self.equal))

    def _read_again(self) -> None:
        """Do what the merge reports for tables that it cannot follow: read them again, into new ones."""
        tables = self.unmergeable
        for table, why in sorted(tables.items()):
            self.outcome.stops.append(f"merge: {table}: {why}")
        self._backfill(tables)
        self.read_again |= tables.keys()
        self._compare_read(strict=True, equal=frozenset(self.equal))
        if again := tables.keys() & self.unmergeable.keys():
            raise Failure("stop", f"read again and still: {self.unmergeable[min(again)]}")

    def _read_cascaded(self) -> None:
        """Follow docs/mysql.md for tables that cascades changed. `cdcflow status` must name them."""
        if not (tables := self.cascaded & self.on.columns().keys()):
            return
        self._check_named(tables)
        self._backfill(tables)
        self.read_after_cascades += len(tables)
        self.is_cascade_excused = False
        try:
            self._compare_read(strict=True, equal=self.equal - tables)
        finally:
            self.is_cascade_excused = True

    def _check_named(self, tables: Collection[TableId]) -> None:
        """`cdcflow status` names the tables that cascades change."""
        source = wiring.open_source(load(self.path))
        try:
            named = source.status(None).details.get("cascades_not_logged", "").split(", ")
        finally:
            source.close()
        if missing := {str(table) for table in tables} - set(named):
            raise Failure("difference", f"rows differ, and the status does not name: {sorted(missing)}")

    def _backfill(self, tables: Collection[TableId]) -> None:
        progress = self.logged.read(wiring.log_reader(load(self.path)))
        before = {table: progress.tables[table].generation for table in tables}
        self._stop()
        self.backfill = tuple(map(str, tables))
        self._start()
        self._wait(tuple(tables), before)
        # One that was started to read these reads no table that is created later.
        self._stop()
        self._start()
        self._wait(tuple(self.on.columns()))

    def _done_otherwise(self, stop: Stop) -> bool:
        """Leave tables out of the settings that the server does not alter as the stop says, or that need a person."""
        tables = {TableId(*found) for found in _PATTERN.findall(stop.remedy)}
        if "write !schema.table" in stop.remedy:
            named = _TABLE.findall(stop.remedy)
            tables |= {TableId(*(part.replace("``", "`") for part in found)) for found in named}
        if not tables:
            return False
        settings = yaml.safe_load(self.path.read_text())
        settings["source"]["tables"] += [f"!{_pattern(table)}" for table in sorted(tables)]
        self.path.write_text(yaml.safe_dump(settings))
        self.on.left_out |= tables
        return True

    def _set_column(self, column: str, policy: str | None) -> None:
        super()._set_column(column, policy)
        if isinstance(self.on, OnSuite):
            self.on.policies = yaml.safe_load(self.path.read_text())["source"]["columns"]

    def close(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
        self.on.forget()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self, tables: tuple[TableId, ...], anew: Mapping[TableId, int] | None = None) -> None:
        """Wait twice: the daemon knows that a table is read slightly before its log does."""
        super()._wait(tables, anew)
        super()._wait(tables, anew)

    def _wait_for_a_list_read(self) -> None:
        """Wait until the daemon has read the list of tables once more. If it ends, the next wait sees it."""
        deadline = time.monotonic() + self.patience_s
        due: int | None = None
        while self.daemon is not None and (status := self.daemon.status()) is not None:
            due = due or self._next_list_read(status)
            if status.list_reads >= due:
                return
            if time.monotonic() > deadline:
                raise Failure("hang", f"waited {self.patience_s:.0f} s in vain for a read of the list of tables")
            time.sleep(POLL_S)

    def _turn(self) -> None:
        if self.daemon is None:
            self._start()
        elif self.mode == "killed":
            self.daemon.kill()
            self.daemon = None
        else:
            with contextlib.suppress(NothingToCapture):
                self._stop()

    def _compare_read(self, *, strict: bool, equal: Collection[TableId] = ()) -> list[TableId]:
        """Compare the tables that are read, but for those that were just `equal`. Returns those whose shape in the
        log is older, unless `strict`."""
        self.unmergeable = {}
        tables = self.on.columns()
        log = wiring.log_reader(load(self.path))
        if strict and not (report := log.check(deep=True)).is_whole:
            raise Failure("broken", f"the log is damaged: {report.faults}")
        progress = self.logged.read(log)
        older, differences = [], []
        for table, columns in sorted(tables.items()):
            try:
                if not self._compared(table, columns, progress, strict=strict, is_done=table in equal):
                    older.append(table)
            except Failure as found:
                differences.append(str(found))
        if differences:
            raise Failure("difference", "; ".join(differences))
        return older

    def _compared(self, table: TableId, columns: list[str], progress: Progress, *, strict: bool, is_done: bool) -> bool:
        """Compare a table, if it is read. False: the log does not have its shape of now."""
        state = progress.tables.get(table)
        if state is None or state.state != "done":
            if strict and self.on.has_rows(table):
                raise Failure("difference", f"table {table} is not read: {state and state.state}")
            return True
        if not self.logged.has(table):
            if self.on.has_rows(table):
                raise Failure("difference", f"table {table}: read, but nothing in the log")
            return True
        if is_done:
            return True
        try:
            shape, rows = self.logged.current(table, state, anew=table in self.read_again)
        except Unmergeable as error:
            self.unmergeable[table] = str(error)
            return True
        return self._is_equal(table, columns, shape, rows, strict=strict)

    def _is_equal(
        self, table: TableId, columns: list[str], shape: Table, rows: list[dict[str, object]], *, strict: bool
    ) -> bool:
        """False: the log does not have the table's shape of now."""
        kinds = {c.name: c.type.arrow for c in shape.columns}
        names = [name for name in columns if name in kinds]
        if len(names) < len(columns) and self.on.has_rows(table):
            if strict:
                raise Failure("difference", f"table {table}: the log's columns are {list(kinds)}, not {columns}")
            return False
        try:
            wanted = Counter(self.on.plain_rows(table, shape, names))
        except (ValueError, ArithmeticError):
            if strict:
                raise
            return False  # the source's texts are of another type
        logged = Counter(tuple(of_the_log(row[name], kinds[name]) for name in names) for row in rows)
        self.compared += 1
        if logged != wanted and self.is_cascade_excused and isinstance(self.on, OnSuite) and table in self.on.cascading:
            self.cascaded.add(table)
            return True
        if logged != wanted:
            more, less = list((logged - wanted).elements()), list((wanted - logged).elements())
            counted = f"{len(more)} rows in the log only, {len(less)} in the source only"
            raise Failure("difference", f"table {table} {names}: {counted}: {more[:1]} {less[:1]}"[:900])
        self.equal.add(table)
        return True


def _pattern(table: TableId) -> str:
    """A table as a pattern of `source.tables`."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in (table.schema, table.name))


__all__ = ["MODES", "Follower"]

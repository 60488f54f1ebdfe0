"""For tests of the whole daemon: a busy little bank, a running daemon, and the full comparison of both.

`Branch` is common to all databases; `Bank` is one on PostgreSQL, `mysql_bank` has those on MySQL and MariaDB.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import yaml
from tests.servers.postgres import Database
from tests.support.polling import PATIENCE_S, wait_until

from cdcflow import wiring
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.progress import Progress
from cdcflow.config import Config, load
from cdcflow.log.fold.fold import FoldedRow, Key
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.table import TableId
from cdcflow.tables.verify import Report
from cdcflow.tables.verify.job import Pace
from cdcflow.testing.folded import fold_log

SCHEMA = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(14,2) NOT NULL,
                       body text, opened timestamptz NOT NULL DEFAULT now()) WITH (fillfactor = 10);
ALTER TABLE accounts ALTER body SET STORAGE EXTERNAL;
CREATE TABLE entries (id bigserial PRIMARY KEY, account bigint NOT NULL, amount numeric(14,2) NOT NULL, note text);
CREATE TABLE notices (id int, seen boolean, words text[]);
ALTER TABLE notices REPLICA IDENTITY FULL;
INSERT INTO accounts SELECT i, 'owner ' || i, i, CASE WHEN i % 3 = 0 THEN repeat(md5(i::text), 90) END, now()
FROM generate_series(1, 6000) i;
INSERT INTO entries (account, amount, note) SELECT i % 6000 + 1, i, 'first' FROM generate_series(1, 9000) i;
INSERT INTO notices SELECT i % 40, i % 2 = 0, ARRAY['a', NULL, 'b'] FROM generate_series(1, 200) i;
"""


Folded = Mapping[TableId, dict[Key, FoldedRow]]
"""The rows that `cdcflow.testing.folded.fold_log` builds from a log."""


class Branch(ABC):
    """A daemon's test on any database: the daemon, the writer's thread, and the comparison of log and source.

    A subclass implements the queries: `session`, `transact`, `fence`, `source_rows`, `columns`.
    """

    schema: str
    tables: tuple[str, ...]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log_settings: dict[str, Any] = {"path": str(self.log), "seal": {"bytes_max": "1MiB", "age_max": "2s"}}
        self.other_settings: dict[str, Any] = {}
        self.config_path = folder / "cdcflow.yaml"
        self.transactions = 0
        self._stop = threading.Event()
        self._writer: threading.Thread | None = None

    def configured(self, source: Mapping[str, Any]) -> Config:
        """Write the settings file. `source` adds to the settings common to all tests."""
        settings = {
            "source": {
                "heartbeat": "1s",
                "backfill": {"chunk_time_target_ms": 20, "chunk_rows_max": 600},
                **source,
            },
            "log": self.log_settings,
            **self.other_settings,
        }
        self.config_path.write_text(yaml.safe_dump(settings))
        return load(self.config_path)

    @abstractmethod
    def configure(self, **source: Any) -> Config:
        """Write the settings file. `source` adds to the settings that this branch always has."""

    # ── queries to the database ─────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def session(self) -> contextlib.AbstractContextManager[Any]:
        """A session for `transact`."""

    @abstractmethod
    def transact(self, session: Any, dice: random.Random) -> None:
        """One transaction over several tables; a transaction that violates a key is as useful as any."""

    @abstractmethod
    def fence(self) -> str:
        """A position of the source after everything committed so far."""

    @abstractmethod
    def is_past(self, position: str, fence: str) -> bool:
        """Whether a log at `position` has everything before `fence` ("": nothing)."""

    @abstractmethod
    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        """The table's rows, sorted."""

    @abstractmethod
    def columns(self, table: str) -> list[str]:
        """Their names, in the table's order."""

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────

    def start_writing(self, seed: int) -> None:
        self._stop.clear()
        self._writer = threading.Thread(target=self._write, args=(random.Random(seed),))
        self._writer.start()

    def stop_writing(self) -> None:
        self._stop.set()
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def write(self, seed: int, transactions: int) -> None:
        """Write this many transactions, and return."""
        dice = random.Random(seed)
        with self.session() as session:
            for _ in range(transactions):
                self.transact(session, dice)

    def _write(self, dice: random.Random) -> None:
        with self.session() as session:
            while not self._stop.is_set():
                self.transact(session, dice)
                self.transactions += 1
                time.sleep(dice.random() / 100)

    # ── capturing ───────────────────────────────────────────────────────────────────────────────────────────

    def daemon(self, *point: str) -> subprocess.Popen[bytes]:
        """Run `kill/daemon.py` in a separate process; it dies at a given `point` (name, count, perhaps `start`)."""
        program = Path(__file__).parents[1] / "kill" / "daemon.py"
        with (self.folder / "daemon.out").open("ab") as output:
            return subprocess.Popen([sys.executable, program, self.config_path, *point], stdout=output, stderr=output)

    def assert_killed(self, daemon: subprocess.Popen[bytes], *, live: bool) -> None:
        """Check that a daemon killed itself at its point and, where required, that its capture was live before: what it
        delivered was durable. A kill that only hits a start proves less than it seems to."""
        try:
            assert daemon.wait(timeout=PATIENCE_S) == -signal.SIGKILL, self.output()
        finally:
            daemon.kill()
            daemon.wait()
        note = (self.folder / "killed").read_text()
        assert note == "live" if live else note in ("live", "start")

    def output(self) -> str:
        return (self.folder / "daemon.out").read_text()

    @contextlib.contextmanager
    def capturing(self, **kwargs: Any) -> Iterator[Capture]:
        """A capture in this process, on a thread; stopped at the end, and its error raised."""
        capture = wiring.capture(load(self.config_path), **kwargs)
        failed: list[BaseException] = []

        def run() -> None:
            try:
                capture.run()
            except BaseException as error:  # noqa: BLE001 - raised below in the test's own thread
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield capture
        finally:
            capture.stop()
            thread.join()
        if failed:
            raise failed[0]

    def capture_to_its_end(self, **kwargs: Any) -> None:
        """A capture in this thread that is expected to stop by itself; it is stopped when it does not."""
        capture = wiring.capture(load(self.config_path), **kwargs)
        patience = threading.Timer(PATIENCE_S, capture.stop)
        patience.start()
        try:
            capture.run()
        finally:
            patience.cancel()

    def wait_until(
        self,
        holds: Callable[[], bool],
        what: str,
        alive: subprocess.Popen[bytes] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        def holds_or_has_ended() -> bool:
            if holds():
                return True
            assert alive is None or alive.poll() is None, f"the daemon ended while waiting for {what}:\n{self.output()}"
            return False

        try:
            wait_until(holds_or_has_ended, what, patience_s=patience_s)
        except BaseException:
            if alive is not None:
                alive.kill()
                alive.wait()
            raise

    @property
    def reader(self) -> LogReader:
        return wiring.log_reader(load(self.config_path))

    def has_passed(self, position: str) -> bool:
        """The log's latest cut is after `position`."""
        reader = self.reader
        found = reader.newest_checkpoint().position if reader.exists() else None
        return found is not None and self.is_past(found.text, position)

    def has_reached(self, position: str) -> bool:
        """The same, and the backfill of every captured table is done."""
        if not self.has_passed(position):
            return False
        tables = Progress.from_json(self.reader.newest_checkpoint().progress).tables.values()
        return bool(tables) and all(t.state in ("done", "forgotten") for t in tables)

    def catch_up_and_stop(self, daemon: subprocess.Popen[bytes]) -> None:
        fence = self.fence()
        self.wait_until(lambda: self.has_reached(fence), "the log to pass the fence", daemon)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=PATIENCE_S) == 0, self.output()

    # ── comparing ───────────────────────────────────────────────────────────────────────────────────────────
    #
    # Two comparisons that share no code: cdcflow's own, next to a running daemon, and one in plain Python. Each would
    # show a fault of the other; `test_both_comparisons` plants faults, and both find them.

    def sealed_offset(self) -> int:
        """The latest offset in a sealed segment; 0 if nothing is sealed."""
        bounds = wiring.sealed_bounds(load(self.config_path))
        return bounds[-1][1] if bounds else 0

    def verified(self) -> Report:
        """What `cdcflow verify --against log` finds while a daemon runs."""
        settings = load(self.config_path)
        return wiring.run_verification(settings, against=["log"], differences_max=3, pace=Pace(seal_wait_s=0.5))

    def assert_verified(self, daemon: subprocess.Popen[bytes] | None = None) -> None:
        """Check that `cdcflow verify` finds all tables equal, once the log is sealed up to the source's position."""
        fence = self.fence()
        self.wait_until(lambda: self.has_reached(fence), "the log to pass the fence", daemon)
        newest = self.reader.newest_checkpoint().next_offset - 1
        self.wait_until(lambda: self.sealed_offset() >= newest, f"offset {newest} to be sealed", daemon)
        report = self.verified()
        assert {table.table for table in report.tables} >= {f"{self.schema}.{table}" for table in self.tables}
        assert report.is_clean, [table for table in report.tables if table.verdict != "equal"]

    def logged_rows(self, table: str, tables: Folded | None = None) -> list[tuple[object, ...]]:
        """A table's rows by the log, sorted. `tables`: the log, folded already."""
        rows = (fold_log(self.reader) if tables is None else tables).get(TableId(self.schema, table), {})
        incomplete = [key for key, row in rows.items() if row.missing]
        assert not incomplete, f"{len(incomplete)} rows of {table} miss columns"
        columns = self.columns(table)
        # A row that was written before a column existed has none in it, which means NULL.
        flat = [tuple(_plain(row.values.get(c)) for c in columns) for row in rows.values() for _ in range(row.count)]
        return sorted(flat, key=repr)

    def assert_log_equals_source(self, log: LogReader | None = None) -> None:
        """I1 to I5 over the whole log: it is sound, and folds to exactly the source's rows. No code of `verify`."""
        log = log or self.reader
        report = log.check(deep=True)
        assert report.is_whole, report.faults
        tables = fold_log(log)
        for table in self.tables:
            source, logged = self.source_rows(table), self.logged_rows(table, tables)
            assert len(logged) == len(source), table
            assert logged == source, table


class Bank(Branch):
    """On PostgreSQL: three tables, one of them without a key, and wide values that the log does not repeat."""

    schema = "public"
    tables: tuple[str, ...] = ("accounts", "entries", "notices")

    def __init__(
        self, database: Database, folder: Path, *, create: bool = True, log: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(folder)
        self.database = database
        self.log_settings = dict(log or self.log_settings)
        if create:
            with database.connect(autocommit=True) as conn:
                conn.execute(SCHEMA)
        self.configure()

    def configure(self, **source: Any) -> Config:
        return self.configured({"kind": "postgres", "url": self.database.url, **source})

    def session(self) -> contextlib.AbstractContextManager[Any]:
        return self.database.connect(autocommit=True)

    def transact(self, conn: psycopg.Connection[Any], dice: random.Random) -> None:
        """Inserts, partial updates, deletes, key changes, savepoints."""
        with contextlib.suppress(psycopg.errors.UniqueViolation), conn.transaction():
            first, second = dice.randint(1, 7000), dice.randint(1, 7000)
            conn.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", (first,))
            conn.execute("INSERT INTO entries (account, amount) VALUES (%s, -1), (%s, 1)", (first, second))
            match dice.randint(0, 7):
                case 0:
                    conn.execute("DELETE FROM accounts WHERE id = %s", (second,))
                case 1:
                    conn.execute(
                        "INSERT INTO accounts VALUES (%s, 'new', 0, repeat('x', 5000)) ON CONFLICT DO NOTHING",
                        (second,),
                    )
                case 2:
                    conn.execute("UPDATE accounts SET id = id + 10000 WHERE id = %s", (second,))
                case 3:
                    with conn.transaction() as inner:
                        conn.execute("DELETE FROM entries WHERE account = %s", (first,))
                        raise psycopg.Rollback(inner)
                case 4:
                    conn.execute("DELETE FROM entries WHERE id %% 997 = %s", (dice.randint(0, 996),))
                case 5:
                    conn.execute("UPDATE notices SET seen = NOT seen WHERE id = %s", (dice.randint(0, 39),))
                case 6:
                    conn.execute("INSERT INTO notices VALUES (%s, NULL, '{}')", (dice.randint(0, 39),))
                case _:
                    conn.execute("UPDATE accounts SET body = NULL, owner = 'nobody' WHERE id = %s", (second,))

    def fence(self) -> str:
        with self.database.connect(autocommit=True) as conn:
            conn.execute("SET synchronous_commit = off")  # commits may be held
            conn.execute("SELECT pg_logical_emit_message(true, 'test', 'fence')")
            (lsn,) = conn.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or ("",)
        high, low = str(lsn).split("/")
        return f"{int(high, 16):08X}/{int(low, 16):08X}"

    def is_past(self, position: str, fence: str) -> bool:
        return position >= fence

    def source_rows(self, table: str) -> list[tuple[object, ...]]:
        with self.database.connect() as conn:
            conn.execute("SET timezone = 'UTC'")
            rows = conn.execute(f"SELECT * FROM {table}").fetchall()
        return sorted((tuple(_plain(v) for v in row) for row in rows), key=repr)

    def columns(self, table: str) -> list[str]:
        with self.database.connect() as conn:
            return [column.name for column in conn.execute(f"SELECT * FROM {table} LIMIT 0").description or ()]


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value

"""The ledger of a polled source: the changes that were found, in the order in which they were found, in a folder.

    ledger.db   records, items, tables and slots (SQLite, each commit synced to the disk)
    rows/        the changes of each record, and the content of each item: Arrow files, never changed once written

A record exists when the commit that adds it is on disk; its files were synced before. Files that no commit names are
deleted at the next opening. Several processes may use a ledger; one at a time polls (`polling`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import Uint64s
from cdcflow.model.position import Position, Token
from cdcflow.model.table import Table, TableId, table_from_json

ORPHAN_AGE_S = 3600.0
"""A file that no commit names is deleted only if it is older than this, because another process may just have written
it."""
BATCH_ROWS = 65_536
WAIT_S = 30.0
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS shapes (
    schema TEXT, name TEXT, shape TEXT NOT NULL, stopped TEXT, PRIMARY KEY (schema, name));
CREATE TABLE IF NOT EXISTS items (
    schema TEXT, name TEXT, item TEXT, print TEXT NOT NULL, content TEXT NOT NULL, lost TEXT, count INTEGER NOT NULL,
    PRIMARY KEY (schema, name, item));
CREATE TABLE IF NOT EXISTS records (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, bytes INTEGER NOT NULL, schema TEXT, name TEXT,
    shape TEXT, changes TEXT, slot TEXT, token TEXT);
CREATE TABLE IF NOT EXISTS slots (slot TEXT PRIMARY KEY, acknowledged INTEGER NOT NULL);
"""
VERSION = 1


def position_of(number: int) -> Position:
    return Position(f"{number:012d}")


def number_of(position: Position) -> int:
    return int(position.text)


@dataclass(frozen=True, slots=True)
class FoundChanges:
    """The shape of the changed table, and the name of the file with the changes."""

    shape: Table
    file: str


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the ledger: changes, or a mark (`changes` is None). `slot`: the log that wrote the mark; a mark
    without a `token` is a heartbeat. `at`: microseconds since 1970, UTC."""

    number: int
    at: int
    bytes: int
    changes: FoundChanges | None
    slot: str | None
    token: Token | None


@dataclass(frozen=True, slots=True)
class WrittenChanges:
    """A file with changes that no record names yet, and the size of its rows in memory."""

    file: str
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item in the state in which it was last read. `content` and `lost` are names of files (see `differences`)."""

    name: str
    print: str
    content: str
    lost: str | None
    count: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a table stopped, at which item, and that item's print then."""

    item: str
    print: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class SeenThrough:
    """Sees the records up to `end`. Implements `cdcflow.capture.interleave.messages.Visibility`."""

    end: int

    def ids_after(self, xids: Uint64s) -> Uint64s:
        return xids[xids > np.uint64(self.end)]

    hidden = ids_after

    def maybe_hidden(self) -> Uint64s:
        return np.empty(0, np.uint64)


class Ledger:
    """The ledger in a folder, which is created if it does not exist. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows = folder / "rows"
        self._lock = threading.RLock()
        self._database: sqlite3.Connection | None = None

    # ── opening ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def exists(self) -> bool:
        return (self.folder / "ledger.db").exists()

    @contextlib.contextmanager
    def _commit(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction, which is committed to disk when the block ends."""
        with self._lock, self._mapping_errors():
            database = self._open()
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

    def _ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self._mapping_errors():
            return self._open().execute(sql, values).fetchall()

    @contextlib.contextmanager
    def _mapping_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise SourceUnavailable(
                f"using the ledger in {self.folder}: {error}",
                remedy="check that the folder exists, can be written, and has room",
                runbook="source-unavailable",
            ) from error

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            self._rows.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(
                self.folder / "ledger.db", timeout=WAIT_S, isolation_level=None, check_same_thread=False
            )
            # With a write-ahead log a commit syncs the disk once instead of four times, and readers do not wait for it.
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.executescript(f"BEGIN IMMEDIATE;{_TABLES}COMMIT;")
            values = {"version": str(VERSION), "id": str(uuid.uuid4())}
            for name, value in values.items():
                database.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, value))
            _sync_folder(self.folder)
            (version,) = database.execute("SELECT value FROM about WHERE name = 'version'").fetchone()
            if version != str(VERSION):
                raise ConfigurationError(
                    f"the ledger in {self.folder} has version {version}, and this cdcflow reads {VERSION}",
                    remedy="install the newer cdcflow again",
                    runbook="newer-format",
                )
            self._database = database
            self._delete_orphans()
        return self._database

    def _delete_orphans(self) -> None:
        named = {
            name
            for row in self._ask("SELECT content, lost FROM items UNION ALL SELECT changes, NULL FROM records")
            for name in row
        }
        for path in self._rows.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.name not in named and time.time() - path.stat().st_mtime > ORPHAN_AGE_S:
                    path.unlink()

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        """Hold the lock for polling during the block: only one process and thread polls at a time."""
        with self._mapping_errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self.folder / "poll.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    # ── what is known ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def id(self) -> str:
        return str(self._ask("SELECT value FROM about WHERE name = 'id'")[0][0])

    @property
    def end(self) -> int:
        """The number of the last record, which may have been deleted."""
        found = self._ask("SELECT seq FROM sqlite_sequence WHERE name = 'records'")
        return int(found[0][0]) if found else 0

    def shapes(self) -> list[Table]:
        """The tables in their current shape, sorted by name."""
        found = self._ask("SELECT shape FROM shapes WHERE shape <> 'null'")
        return sorted((table_from_json(json.loads(text)) for (text,) in found), key=lambda table: table.id)

    def shape(self, table: TableId) -> Table | None:
        found = self._ask("SELECT shape FROM shapes WHERE schema = ? AND name = ?", table.schema, table.name)
        return table_from_json(json.loads(found[0][0])) if found and found[0][0] != "null" else None

    def items(self, table: TableId) -> list[StoredItem]:
        """The items of a table, sorted by name."""
        found = self._ask(
            "SELECT item, print, content, lost, count FROM items WHERE schema = ? AND name = ? ORDER BY item",
            table.schema,
            table.name,
        )
        return [StoredItem(*row) for row in found]

    def item(self, table: TableId, name: str) -> StoredItem | None:
        """An item of a table; None if it was not read yet."""
        found = self._ask(
            "SELECT item, print, content, lost, count FROM items WHERE schema = ? AND name = ? AND item = ?",
            table.schema,
            table.name,
            name,
        )
        return StoredItem(*found[0]) if found else None

    def prints(self) -> dict[tuple[TableId, str], str]:
        """The print of each item by its table and name."""
        found = self._ask("SELECT schema, name, item, print FROM items")
        return {(TableId(schema, name), item): text for schema, name, item, text in found}

    def snapshot(self, table: TableId) -> tuple[int, Table | None, list[StoredItem]]:
        """Return the number of the last record, and the table's shape and items at that record."""
        with self._lock, self._mapping_errors():
            database = self._open()
            database.execute("BEGIN")
            try:
                return self.end, self.shape(table), self.items(table)
            finally:
                database.execute("COMMIT")

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────

    def write_rows(self, rows: pa.Table) -> str:
        """Write rows into a new file, and return its name. When this returns, the file's content is durable; its name
        is durable after `add_item`."""
        name = f"{uuid.uuid4().hex}.arrow"
        with self._mapping_errors():
            self._open()
            with (self._rows / name).open("xb") as file:
                with pa.ipc.new_file(file, rows.schema, options=_OPTIONS) as writer:
                    writer.write_table(rows, max_chunksize=BATCH_ROWS)
                file.flush()
                os.fsync(file.fileno())
        return name

    def read_rows(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a file, or some of its columns.

        Raises:
            FileNotFoundError: another version of the item replaced it.
        """
        with pa.OSFile(str(self._rows / name)) as file:
            schema = pa.ipc.open_file(file).schema
            wanted = None if columns is None else [schema.get_field_index(c) for c in columns]
            options = pa.ipc.IpcReadOptions(included_fields=wanted)
            found = pa.ipc.open_file(file, options=options).read_all()
        return found if columns is None else found.select(list(columns))

    def batches(self, name: str) -> Iterator[pa.RecordBatch]:
        """The rows of a record, one batch after another."""
        with pa.OSFile(str(self._rows / name)) as file:
            opened = pa.ipc.open_file(file)
            for number in range(opened.num_record_batches):
                yield opened.get_batch(number)

    # ── records ─────────────────────────────────────────────────────────────────────────────────────────────

    def add_item(self, shape: Table, item: StoredItem, lost: dict[str, str], changes: WrittenChanges | None) -> None:
        """Store an item's new content, and the record of its changes, if it has any.

        `lost`: new files for the keys that other items of the table no longer have.
        """
        table = shape.id
        replaced = [one for name in (item.name, *lost) if (one := self.item(table, name)) is not None]
        with self._mapping_errors():
            _sync_folder(self._rows)
        with self._commit() as database:
            database.execute(
                "INSERT INTO shapes VALUES (?, ?, ?, NULL)"
                " ON CONFLICT DO UPDATE SET shape = excluded.shape, stopped = NULL",
                (table.schema, table.name, json.dumps(shape.to_json())),
            )
            database.execute(
                "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, ?, ?, ?)",
                (table.schema, table.name, item.name, item.print, item.content, item.lost, item.count),
            )
            for other, file in lost.items():
                where = (file, table.schema, table.name, other)
                database.execute("UPDATE items SET lost = ? WHERE schema = ? AND name = ? AND item = ?", where)
            if changes is not None:
                text = json.dumps(shape.to_json())
                values = (_now_us(), changes.bytes, table.schema, table.name, text, changes.file)
                database.execute(
                    "INSERT INTO records (at, bytes, schema, name, shape, changes) VALUES (?, ?, ?, ?, ?, ?)", values
                )
        kept = {item.content, item.lost, *lost.values()}
        contents = [one.content for one in replaced if one.name == item.name]
        self._delete([*contents, *(one.lost for one in replaced)], kept)

    def add_mark(self, slot: str, token: Token | None) -> None:
        with self._commit() as database:
            text = None if token is None else token.text
            database.execute(
                "INSERT INTO records (at, bytes, slot, token) VALUES (?, 1, ?, ?)", (_now_us(), slot, text)
            )

    def records_after(self, number: int, most: int) -> list[Record]:
        found = self._ask(
            "SELECT number, at, bytes, shape, changes, slot, token FROM records WHERE number > ?"
            " ORDER BY number LIMIT ?",
            number,
            most,
        )
        return [
            Record(
                number,
                at,
                size,
                None if changes is None else FoundChanges(table_from_json(json.loads(shape)), changes),
                slot,
                None if token is None else Token(token),
            )
            for number, at, size, shape, changes, slot, token in found
        ]

    def bytes_after(self, number: int) -> int:
        """Return the size of the records after this one."""
        return int(self._ask("SELECT coalesce(sum(bytes), 0) FROM records WHERE number > ?", number)[0][0])

    def times(self, first: int) -> dict[int, int]:
        """Return when each record with changes was found, beginning with record `first`."""
        return dict(self._ask("SELECT number, at FROM records WHERE number >= ? AND changes IS NOT NULL", first))

    # ── stopped tables ──────────────────────────────────────────────────────────────────────────────────────

    def stops(self) -> dict[TableId, Stop]:
        found = self._ask("SELECT schema, name, stopped FROM shapes WHERE stopped IS NOT NULL")
        return {TableId(schema, name): Stop(**json.loads(text)) for schema, name, text in found}

    def stop(self, table: TableId, why: Stop | None) -> None:
        """Record that a table stops at an item, or (None) that it continues."""
        text = None
        if why is not None:
            text = json.dumps({"item": why.item, "print": why.print, "reason": why.reason, "remedy": why.remedy})
        with self._commit() as database:
            database.execute(
                "INSERT INTO shapes VALUES (?, ?, 'null', ?) ON CONFLICT DO UPDATE SET stopped = excluded.stopped",
                (table.schema, table.name, text),
            )

    # ── slots ───────────────────────────────────────────────────────────────────────────────────────────────

    def slots(self) -> dict[str, int]:
        """Return the number of the record that each log has acknowledged."""
        return dict(self._ask("SELECT slot, acknowledged FROM slots"))

    def begin_slot(self, slot: str) -> int:
        """Create a slot at the ledger's end, and return its position."""
        with self._commit() as database:
            end = self.end
            database.execute("INSERT OR REPLACE INTO slots VALUES (?, ?)", (slot, end))
        return end

    def acknowledge(self, slot: str, number: int) -> None:
        """Record that a log has everything up to a record, and delete records that no log needs any longer."""
        with self._commit() as database:
            database.execute("UPDATE slots SET acknowledged = max(acknowledged, ?) WHERE slot = ?", (number, slot))
            done = self._forget(database)
        self._delete(done, set())

    def drop_slot(self, slot: str) -> bool:
        """Delete a slot. Return whether it existed."""
        with self._commit() as database:
            existed = database.execute("DELETE FROM slots WHERE slot = ?", (slot,)).rowcount > 0
            done = self._forget(database)
        self._delete(done, set())
        return existed

    def _forget(self, database: sqlite3.Connection) -> list[str | None]:
        (kept,) = database.execute("SELECT min(acknowledged) FROM slots").fetchone()
        through = self.end if kept is None else kept
        done = database.execute("SELECT changes FROM records WHERE number <= ?", (through,)).fetchall()
        database.execute("DELETE FROM records WHERE number <= ?", (through,))
        return [name for (name,) in done]

    def _delete(self, names: Sequence[str | None], kept: set[str | None]) -> None:
        for name in names:
            if name is not None and name not in kept:
                with contextlib.suppress(OSError):  # a later opening deletes it
                    (self._rows / name).unlink()


def _now_us() -> int:
    return time.time_ns() // 1000


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)

"""A PostgreSQL server for a bench, and backlogs that wait in its log for every party.

A backlog is prepared once. First a capture of the empty table creates publication, slot and a log that knows its place;
that log is kept as a template, and the slot is copied to one that is never read (`KEPT`). Then the changes are written.
Each party of each round reads a fresh copy of the kept slot, cdcflow also with a fresh copy of the template. So all of
them read the same bytes from the same place, in any order.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from tests.servers.postgres import PostgresServer

from bench.harness import Child, Failed
from bench.shapes import Shape
from cdcflow.demo.servers.postgres import binary_directory

KEPT, SLOT, PUBLICATION = "bench_kept", "bench", "bench"

# In addition to the test servers' own (no fsync, no full pages): nothing that starts work by itself in the middle of a
# round.
SETTINGS = {
    "autovacuum": "off",
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1d",
    "shared_buffers": "256MB",
    "max_connections": "100",
}


class Server(PostgresServer):
    """A server whose clients all come the same way: over TCP, or through its Unix socket."""

    def __init__(self, transport: str = "tcp", **settings: str) -> None:
        super().__init__(settings={**SETTINGS, **settings})
        self.transport = transport

    @property
    def dsn(self) -> str:
        """For all parties except Debezium, which supports only TCP."""
        if self.transport == "unix":
            return f"postgresql://postgres@/postgres?host={self.directory}&port={self.port}"
        return self.url()

    @property
    def replication_dsn(self) -> str:
        return f"{self.dsn}{'&' if '?' in self.dsn else '?'}replication=database"

    @property
    def postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    def value(self, statement: str) -> Any:  # Any: the statement's result, of any type
        """The first column of the first row."""
        return self.execute(statement)[0][0]

    def copy_slot(self, source: str, target: str = SLOT) -> None:
        """A fresh copy of a slot, which replaces the previous one."""
        self.drop_slot(target)
        self.execute(f"SELECT pg_copy_logical_replication_slot('{source}', '{target}')")

    def drop_slot(self, name: str = SLOT) -> None:
        """Waits while a party that just ended still holds it."""
        for _ in range(600):
            try:
                self.execute(
                    f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}'"
                )
            except psycopg.errors.ObjectInUse:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError(f"slot {name} is still held")

    def until_read(self, child: Child) -> None:
        """Wait until the child reads the slot, and a little longer.

        Raises:
            Failed: it ended instead.
        """
        active = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{SLOT}' AND active"
        while not self.value(active):
            if not child.is_alive:
                child.outcome()
                raise Failed("the reader ended before anything was written")
            time.sleep(0.05)
        time.sleep(0.5)

    def warm_wal(self) -> None:
        """Read the whole log once, so that no party is the first to read it."""
        for segment in sorted((self.data / "pg_wal").glob("0*")):
            with segment.open("rb") as file:
                while file.read(1 << 20):
                    pass


def machine(transport: str) -> str:
    """The environment that a run's figures belong to: cores, versions, and how the parties connected to the server."""
    program = binary_directory() / "postgres"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    way = {"tcp": "TCP on the loopback", "unix": "Unix socket"}[transport]
    return f"{os.cpu_count()} cores, PostgreSQL {said.split()[-1]}, Python {platform.python_version()}, {way}"


@dataclass(frozen=True, slots=True)
class Backlog:
    """Changes that wait. `end` is a place after the last of them, `rows` how many they are."""

    server: Server
    shape: Shape
    template: Path
    rows: int
    end: str
    wal_bytes: int


def settings(server: Server, log: Path, catch_up: str = "never", **source: object) -> dict[str, object]:
    """What cdcflow.yaml would say. `catch_up`: how a large backlog is read."""
    postgres = {"kind": "postgres", "url": server.dsn, "slot": SLOT, "publication": PUBLICATION, "catch_up": catch_up}
    return {"source": {**postgres, **source}, "log": {"path": str(log)}}


def begun(server: Server, folder: Path) -> Path:
    """The template: a log whose capture has begun and stopped, its slot kept."""
    template = folder / "template"
    Child.of("capture", {"config": settings(server, template), "once": True}).outcome()
    server.copy_slot(SLOT, KEPT)
    return template


def prepared(server: Server, folder: Path, shape: Shape, rows: int, per_transaction: int) -> Backlog:
    """Write a backlog of `rows` inserts, `per_transaction` in each transaction."""
    server.execute(shape.create)
    template = begun(server, folder)
    before = server.value("SELECT pg_current_wal_lsn()")
    insert_rows(server, shape, rows, per_transaction)
    return ended(server, shape, template, rows // per_transaction * per_transaction, before)


def insert_rows(server: Server, shape: Shape, rows: int, per_transaction: int) -> None:
    """Insert `rows` rows, `per_transaction` in each transaction."""
    with server.connect() as connection:
        connection.execute(
            f"""DO $$ BEGIN FOR t IN 0..{rows // per_transaction - 1} LOOP
            {shape.insert(f"t * {per_transaction} + 1", f"(t + 1) * {per_transaction}")}; COMMIT; END LOOP; END $$"""
        )


def ended(server: Server, shape: Shape, template: Path, rows: int, before: str) -> Backlog:
    """Close a backlog: what waits ends here."""
    end = server.value("SELECT pg_current_wal_flush_lsn()")
    # After the end, so that pg_recvlogical sees that it reached it; and all of it before the rounds.
    server.execute("SELECT pg_logical_emit_message(true, 'bench', 'end')")
    server.execute("SELECT pg_switch_wal()")
    server.execute("CHECKPOINT")
    server.execute(f"VACUUM (ANALYZE) {shape.name}")
    server.warm_wal()
    size = int(server.value(f"SELECT '{end}'::pg_lsn - '{before}'::pg_lsn"))
    return Backlog(server, shape, template, rows, end, size)


@contextmanager
def fresh_log(template: Path | None, log: Path) -> Iterator[Path]:
    """A copy of the template (None: nothing yet) at `log`, removed afterwards."""
    shutil.rmtree(log, ignore_errors=True)
    if template is not None:
        shutil.copytree(template, log)
    try:
        yield log
    finally:
        shutil.rmtree(log, ignore_errors=True)

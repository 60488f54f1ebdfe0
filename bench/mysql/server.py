"""A MySQL or MariaDB server for a bench, and a backlog that waits in its binary log for every party.

The binary log keeps what was read from it, so all parties read the same files from the same place. cdcflow begins with
a log that was created while the table was empty (`template`); a fresh copy of it in each round.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from tests.servers.debian import unpacked
from tests.servers.mysql import Flavor, MySQLServer

from bench import peers
from bench.harness import Child, Failed
from bench.shapes import scattered
from cdcflow.demo.servers.cached import command

SCHEMA, TABLE = "bench", "narrow"
NUMBERS = 1_000_000

# In addition to the test servers' own: room, and nothing that starts work by itself in the middle of a round.
SETTINGS = {
    "innodb_buffer_pool_size": "1G",
    "max_binlog_size": "1G",
    "max_allowed_packet": "64M",
}

COLUMNS = (
    ("id", "bigint", "i"),
    ("customer", "int", scattered(100_003, 7919)),
    (
        "status",
        "varchar(16)",
        f"CASE {scattered(100_019, 31)} % 7 WHEN 0 THEN 'open' WHEN 1 THEN 'sent' ELSE 'paid' END",
    ),
    ("note", "varchar(64)", "concat('order number ', " + scattered(2_147_483_647, 48_271) + ")"),
    ("amount", "decimal(10,2)", scattered(9_999_991, 265_443) + " / 100"),
    (
        "placed",
        "timestamp(6)",
        f"timestamp '2024-01-01 00:00:00' + INTERVAL (i * 1500000 + {scattered(1_000_003, 16_807)}) MICROSECOND",
    ),
)
"""The narrow table of the PostgreSQL benches."""


class Server(MySQLServer):
    """A server whose clients all come over TCP."""

    def __init__(self, flavor: Flavor, **settings: str) -> None:
        super().__init__(flavor, {**SETTINGS, **settings})

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def program(self, name: str) -> list[str]:
        """How to start one of the server's own client programs."""
        inside = f"usr/bin/{name}"
        if (self.installation.base / "bin" / name).exists():
            loaded = len(self.installation.command) > 1
            root = self.installation.base.parent
            return list(command(root, inside)) if loaded else [str(root / inside)]
        if self.flavor == "mysql" and name == "mysql":  # under that name Debian installs MariaDB's
            return list(command(unpacked("mysql-client-core", "sid"), inside))
        if Path("/", inside).exists():
            return [f"/{inside}"]
        raise Failed(f"{self.flavor} came without {name}")

    def make(self) -> None:
        """The empty table, and a table of numbers that no log has."""
        listed = ", ".join(f"{name} {kind}{' NOT NULL' if name == 'id' else ' NULL'}" for name, kind, _ in COLUMNS)
        self.execute(f"CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4")
        self.execute(f"CREATE TABLE {SCHEMA}.{TABLE} ({listed}, PRIMARY KEY (id))")
        digits = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))
        powers = " + ".join(f"{10**n} * t{n}.d" for n in range(6))
        joined = ", ".join(f"({digits}) t{n}" for n in range(6))
        self.execute(
            "SET sql_log_bin = 0",
            f"CREATE TABLE {SCHEMA}.numbers (n int PRIMARY KEY)",
            f"INSERT INTO {SCHEMA}.numbers SELECT {powers} AS n FROM {joined}",
        )

    def insert(self, first: int, rows: int) -> None:
        """Rows `first` and following in one transaction."""
        with closing(self.connect(SCHEMA)) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for begin in range(first, first + rows, NUMBERS):
                count = min(NUMBERS, first + rows - begin)
                cursor.execute(_insert(str(begin), f"n < {count}"))
            cursor.execute("COMMIT")

    def insert_each(self, rows: int, per_transaction: int) -> None:
        """Rows starting at 1, this many in each transaction."""
        with closing(self.connect(SCHEMA)) as connection, connection.cursor() as cursor:
            cursor.execute("DROP PROCEDURE IF EXISTS fill")
            cursor.execute(
                f"CREATE PROCEDURE fill() BEGIN DECLARE f bigint DEFAULT 1; WHILE f <= {rows} DO "
                f"{_insert('f', f'n < {per_transaction}')}; SET f = f + {per_transaction}; END WHILE; END"
            )
            cursor.execute("CALL fill()")

    def files(self) -> list[str]:
        """Its binary logs, oldest first."""
        return [str(row[0]) for row in self.execute("SHOW BINARY LOGS")]

    def source_rows(self) -> pa.Table:
        """The table's rows, ascending by id. Times are microseconds, decimals their text."""
        statement = (
            "SELECT id, customer, status, note, CAST(amount AS char), "
            f"timestampdiff(MICROSECOND, timestamp '1970-01-01 00:00:00', placed) FROM {SCHEMA}.{TABLE} ORDER BY id"
        )
        kinds = [pa.int64(), pa.int32(), pa.string(), pa.string(), pa.string(), pa.int64()]
        columns = [list(column) for column in zip(*self.execute(statement), strict=True)] or [[] for _ in kinds]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        return pa.table(arrays, names=[name for name, _, _ in COLUMNS])


def _insert(first: str, which: str) -> str:
    listed = ", ".join(expression for _, _, expression in COLUMNS)
    return f"INSERT INTO {TABLE} SELECT {listed} FROM (SELECT {first} + n AS i FROM numbers WHERE {which}) rows_"


def settings(server: Server, log: Path, **source: object) -> dict[str, object]:
    """What cdcflow.yaml would say."""
    named = {"kind": server.flavor, "url": server.url(), "tables": [f"{SCHEMA}.{TABLE}"], "tls": {"mode": "off"}}
    return {"source": {**named, **source}, "log": {"path": str(log)}}


@dataclass(frozen=True, slots=True)
class Backlog:
    """Changes that wait: `rows` of them, starting at `file` and `position`.

    `debezium` is a folder with what Debezium keeps of an earlier run; None where it does not take part.
    """

    server: Server
    template: Path
    rows: int
    file: str
    position: int
    source: pa.Table
    debezium: Path | None


def prepared(server: Server, folder: Path, rows: int, per_transaction: int, *, with_debezium: bool = False) -> Backlog:
    """A backlog of `rows` inserts, `per_transaction` in each transaction, in a separate file."""
    server.make()
    template = folder / "template"
    Child.of("capture", {"config": settings(server, template), "once": True}).outcome()
    debezium = _begun(server, folder / "debezium") if with_debezium else None
    server.execute("FLUSH BINARY LOGS")
    file, position = server.binlog()
    server.insert_each(rows, per_transaction)
    server.execute("FLUSH BINARY LOGS")
    for name in server.files():
        (server.data / name).read_bytes()  # so that no party is the first to read it
    return Backlog(server, template, rows, file, position, server.source_rows(), debezium)


def _begun(server: Server, folder: Path) -> Path | None:
    """Let Debezium find its place: it has no setting for one."""
    command = peers.debezium_mysql_command(
        server.port, 1, folder, f"{SCHEMA}.{TABLE},{SCHEMA}.begun", bench_close="true", offset_flush_interval_ms="0"
    )
    if server.flavor != "mysql" or command is None:
        return None  # of its connector for MariaDB only an older release is available
    folder.mkdir()
    server.execute(f"CREATE TABLE {SCHEMA}.begun (id int PRIMARY KEY AUTO_INCREMENT)")
    child = Child(command)
    while child.is_alive:
        time.sleep(1.0)
        server.execute(f"INSERT INTO {SCHEMA}.begun VALUES ()")
    child.outcome()
    return folder


def machine(server: Server) -> str:
    """The environment that a run's figures belong to."""
    name = {"mysql": "MySQL", "mariadb": "MariaDB"}[server.flavor]
    version = server.version.removesuffix("-MariaDB").split("-")[0]
    return f"{os.cpu_count()} cores, {name} {version}, Python {platform.python_version()}, TCP on the loopback"

"""The demo on MySQL or MariaDB: the same tables and the same session as on PostgreSQL, in their SQL."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import pymysql

from cdcflow.demo import flights, proof
from cdcflow.demo.databases import Columns, Digest, StatementResult, Undone
from cdcflow.demo.servers.mysql import Flavor, MySQLServer
from cdcflow.sources.mysql.position import BinlogPosition

SCHEMA = (
    "CREATE TABLE airlines (carrier varchar(8) PRIMARY KEY, name varchar(100) NOT NULL)",
    """CREATE TABLE airports (
  faa varchar(8) PRIMARY KEY, name varchar(100) NOT NULL, lat double NOT NULL, lon double NOT NULL, alt int,
  tz smallint, dst char(1), tzone varchar(40))""",
    """CREATE TABLE planes (
  tailnum varchar(10) PRIMARY KEY, year smallint, type varchar(40), manufacturer varchar(40), model varchar(40),
  engines smallint, seats int, speed int, engine varchar(20))""",
    """CREATE TABLE weather (
  origin varchar(8), year smallint, month smallint, day smallint, hour smallint, temp decimal(6,2), dewp decimal(6,2),
  humid decimal(5,2), wind_dir int, wind_speed double, wind_gust double, precip decimal(5,2), pressure decimal(6,1),
  visib float, time_hour timestamp(6), PRIMARY KEY (origin, time_hour))""",
    """CREATE TABLE flights (
  year smallint NOT NULL, month smallint NOT NULL, day smallint NOT NULL, dep_time int, sched_dep_time int,
  dep_delay int, arr_time int, sched_arr_time int, arr_delay int, carrier varchar(8), flight int, tailnum varchar(10),
  origin varchar(8) NOT NULL, dest varchar(8) NOT NULL, air_time int, distance bigint, hour smallint, minute smallint,
  time_hour timestamp(6), remarks text, PRIMARY KEY (time_hour, carrier, flight),
  FOREIGN KEY (carrier) REFERENCES airlines (carrier))""",
)
_REMARKS = """
UPDATE flights SET remarks = repeat(sha2(concat(time_hour, carrier, flight), 512), 64)
WHERE mod(crc32(flight + day * 10000), 200) = 0
"""
NAMES: Mapping[Flavor, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}
PLAIN_TIME = "replace(left(@time_hour, 19), 'T', ' ')"
NA = "'NA'"
UTC = "SET time_zone = '+00:00'"
_LOADED = "loaded"


class MySQL:
    """Implements `databases.DemoSource`. With `server` None it starts a server inside the context."""

    schema = flights.DATABASE
    planted_fault = "UPDATE planes SET seats = seats + 1 WHERE tailnum = 'N10156'"

    def __init__(self, flavor: Flavor, server: MySQLServer | None = None) -> None:
        # The rows are in CSV files on the client's side.
        self._server = server or MySQLServer(flavor, {"local_infile": "ON"})
        self.name = NAMES[flavor]

    def __enter__(self) -> Self:
        self._server.__enter__()
        self.name = f"{NAMES[self._server.flavor]} {self._server.version.split('-')[0]}"
        self._server.execute(f"CREATE DATABASE {flights.DATABASE} CHARACTER SET utf8mb4")
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)

    @property
    def url(self) -> str:
        return self._server.url()

    def load(self, rows_max: int | None) -> Mapping[str, int]:
        with closing(self._server.connect(flights.DATABASE, local_infile=True)) as connection:
            return load(connection, rows_max)

    def settings(self) -> Sequence[str]:
        return [
            f"kind: {self._server.flavor}",
            f"url: {self.url}",
            f"tables: [{self.schema}.*]",
            "tls: {mode: off}",
        ]

    def end(self) -> str:
        file, position = self._server.binlog()
        return f"{file}:{position}"

    def has_reached(self, position: object, end: str) -> bool:
        if not position:
            return False
        return BinlogPosition.parse(str(position)).coordinate >= BinlogPosition.parse(f"{end};").coordinate

    def execute(self, statement: str) -> None:
        self._server.execute(statement, database=flights.DATABASE)

    def columns(self, table: str) -> Columns:
        rows = self._server.execute(
            "SELECT column_name, data_type FROM information_schema.columns"  # noqa: S608  cdcflow's own names
            f" WHERE table_schema = '{self.schema}' AND table_name = '{table}' ORDER BY ordinal_position"
        )
        return [(str(name), proof.OF_MYSQL[str(kind)]) for name, kind in rows]

    def digest(self, table: str, columns: Columns) -> Digest:
        rows = self._server.execute(UTC, proof.in_mysql(table, columns), database=flights.DATABASE)
        count, first, second = rows[0]
        return Digest(int(count), f"{int(first):x}.{int(second):x}")


def seed(url: str, password: str | None, rows_max: int | None) -> Mapping[str, int]:
    """Create and fill the tables, unless they exist completely."""
    with closing(pymysql.connect(**_address(url, password), local_infile=True, autocommit=True)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM information_schema.tables"
                " WHERE table_schema = database() AND table_name = 'flights' AND table_comment = %s",
                (_LOADED,),
            )
            if cursor.fetchone()[0]:
                return {}
            # A statement that creates a table commits: existing tables were left by an unfinished run.
            cursor.execute(f"DROP TABLE IF EXISTS {', '.join(reversed(flights.TABLES))}")
        return load(connection, rows_max)


def load(connection: pymysql.Connection, rows_max: int | None) -> dict[str, int]:
    """Create and fill the tables; `rows_max` bounds the flights. Returns the rows of each table."""
    with connection.cursor() as cursor, tempfile.TemporaryDirectory(prefix="cdcflow-load-") as room:
        cursor.execute(UTC)
        for statement in SCHEMA:
            cursor.execute(statement)
        counts = {
            table: _fill(cursor, Path(room), table, rows_max if table == "flights" else None)
            for table in flights.TABLES
        }
        cursor.execute(_REMARKS)
        cursor.execute(f"ANALYZE NO_WRITE_TO_BINLOG TABLE {', '.join(flights.TABLES)}")
        cursor.execute(f"ALTER TABLE flights COMMENT = '{_LOADED}'")
    return counts


def _fill(cursor: pymysql.cursors.Cursor, room: Path, table: str, rows_max: int | None) -> int:
    path = room / f"{table}.csv"
    with flights.csv(table) as lines, path.open("wb") as file:
        columns = next(iter(lines)).decode().strip().split(",")
        file.writelines(itertools.islice(lines, rows_max))
    taken = ", ".join(f"@{name}" for name in columns)
    # 2013-01-01T10:00:00Z; what is missing is NA.
    put = ", ".join(f"{name} = {PLAIN_TIME if name == 'time_hour' else f'NULLIF(@{name}, {NA})'}" for name in columns)
    cursor.execute(
        f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {table} CHARACTER SET utf8mb4 FIELDS TERMINATED BY ','"
        f" OPTIONALLY ENCLOSED BY '\"' ESCAPED BY '' LINES TERMINATED BY '\\n' ({taken}) SET {put}"
    )
    path.unlink()
    return int(cursor.rowcount)


def _address(url: str, password: str | None) -> dict[str, Any]:
    """pymysql's arguments for the server's address.

    `?ssl_ca=FILE` requires TLS, and a certificate that the authority in this file has signed.
    """
    address = urlsplit(url)
    authority = dict(parse_qsl(address.query)).get("ssl_ca")
    return {
        "host": address.hostname,
        "port": address.port or 3306,
        "user": address.username,
        "password": password or "",
        "database": flights.DATABASE,
        "charset": "utf8mb4",
        **({"ssl": {"ca": authority}} if authority else {}),
    }


class MySQLSession:
    """Implements `databases.DemoSession`. Its log omits wide values that did not change."""

    words: Mapping[str, str] = {
        "a twentieth of": "WHERE rand() < 0.05",
        "if it is new": "",
        "insert": "INSERT IGNORE",
        "no gust": "-1e300",
        "hours into 2013": "timestamp '2013-01-01 00:00:00' + INTERVAL %s HOUR",
        "2014": "timestamp '2014-01-01 00:00:00'",
    }

    def __init__(self, url: str, password: str | None = None) -> None:
        self._connection = pymysql.connect(
            **_address(url, password),
            autocommit=True,
            init_command="SET time_zone = '+00:00', SESSION binlog_row_image = 'NOBLOB'",
        )
        self._depth = 0

    def execute(self, statement: str, values: Iterable[object] = ()) -> StatementResult:
        cursor: Any = self._connection.cursor()
        cursor.execute(statement, tuple(values) or None)
        return cursor  # type: ignore[no-any-return]  # pymysql has no types

    @contextmanager
    def transaction(self) -> Iterator[None]:
        level, self._depth = self._depth, self._depth + 1
        self.execute(f"SAVEPOINT s{level}" if level else "BEGIN")
        try:
            yield
        except Undone:
            self.execute(f"ROLLBACK TO SAVEPOINT s{level}" if level else "ROLLBACK")
        else:
            if not level:
                self.execute("COMMIT")
        finally:
            self._depth = level

    def close(self) -> None:
        self._connection.close()

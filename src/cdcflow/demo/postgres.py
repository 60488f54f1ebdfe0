"""The demo on PostgreSQL: the tables, with realistic types and keys, and a session that writes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import psycopg

from cdcflow.demo import flights, proof
from cdcflow.demo.databases import Columns, Digest, StatementResult, Undone
from cdcflow.demo.servers.postgres import PostgresServer

SCHEMA = """
CREATE TABLE airlines (carrier text PRIMARY KEY, name text NOT NULL);
CREATE TABLE airports (
  faa text PRIMARY KEY, name text NOT NULL, lat float8 NOT NULL, lon float8 NOT NULL, alt int4, tz int2, dst char(1),
  tzone text);
CREATE TABLE planes (
  tailnum text PRIMARY KEY, year int2, type text, manufacturer text, model text, engines int2, seats int4, speed int4,
  engine text);
CREATE TABLE weather (
  origin text, year int2, month int2, day int2, hour int2, temp numeric(6,2), dewp numeric(6,2), humid numeric(5,2),
  wind_dir int4, wind_speed float8, wind_gust float8, precip numeric(5,2), pressure numeric(6,1), visib float4,
  time_hour timestamptz, PRIMARY KEY (origin, time_hour));
CREATE TABLE flights (
  year int2 NOT NULL, month int2 NOT NULL, day int2 NOT NULL, dep_time int4, sched_dep_time int4, dep_delay int4,
  arr_time int4, sched_arr_time int4, arr_delay int4, carrier text REFERENCES airlines, flight int4, tailnum text,
  origin text NOT NULL, dest text NOT NULL, air_time int4, distance int8, hour int2, minute int2,
  time_hour timestamptz, remarks text, PRIMARY KEY (time_hour, carrier, flight));
"""

# Random hexadecimal digits do not compress, so a value of this length is stored outside its row (TOAST), and the log
# does not repeat it when another column changes.
_REMARKS = """
UPDATE flights f SET remarks =
  (SELECT string_agg(md5(f.time_hour::text || f.carrier || f.flight || n), '') FROM generate_series(1, %s) n)
WHERE hashint4(f.flight + f.day * 10000) %% 200 = 0
"""

Connection = psycopg.Connection[tuple[Any, ...]]


class Postgres:
    """Implements `databases.DemoSource`. With `server` None it starts a server inside the context."""

    schema = "public"
    planted_fault = "UPDATE planes SET seats = seats + 1 WHERE tailnum = 'N10156'"

    def __init__(self, server: PostgresServer | None = None) -> None:
        self._server = server or PostgresServer()
        self.name = "PostgreSQL"

    def __enter__(self) -> Self:
        self._server.__enter__()
        self.name = f"PostgreSQL {self._server.version // 10000}"
        self._server.execute(f"CREATE DATABASE {flights.DATABASE} TEMPLATE template0")
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)

    @property
    def url(self) -> str:
        return self._server.url(flights.DATABASE)

    def load(self, rows_max: int | None) -> Mapping[str, int]:
        with self._server.connect(flights.DATABASE) as connection:
            return load(connection, rows_max)

    def settings(self) -> Sequence[str]:
        return ["kind: postgres", f"url: {self.url}", "tables: [public.*]"]

    def end(self) -> str:
        ((end,),) = self._server.execute("SELECT pg_current_wal_flush_lsn()::text", flights.DATABASE)
        return str(end)

    def has_reached(self, position: object, end: str) -> bool:
        return _lsn(position) >= _lsn(end)

    def execute(self, statement: str) -> None:
        self._server.execute(statement, flights.DATABASE)

    def columns(self, table: str) -> Columns:
        with self._server.connect(flights.DATABASE) as connection:
            return proof.columns_of(connection, table)

    def digest(self, table: str, columns: Columns) -> Digest:
        with self._server.connect(flights.DATABASE) as connection:
            return proof.source_digest(connection, table, columns)


def seed(url: str, password: str | None, rows_max: int | None) -> Mapping[str, int]:
    """Create and fill the tables, unless they exist."""
    with psycopg.connect(url, password=password, autocommit=True) as connection:
        found = connection.execute("SELECT to_regclass('public.flights') IS NOT NULL").fetchone()
        # All tables are created in one transaction: if one exists, all are whole.
        return {} if found and found[0] else load(connection, rows_max)


def load(connection: Connection, rows_max: int | None) -> dict[str, int]:
    """Create and fill the tables; `rows_max` bounds the flights. Returns the rows of each table."""
    counts: dict[str, int] = {}
    with connection.transaction():
        connection.execute(SCHEMA)
        for table in flights.TABLES:
            with flights.csv(table) as lines:
                counts[table] = _copy(connection, table, lines, rows_max if table == "flights" else None)
        connection.execute(_REMARKS.encode(), (flights.REMARK_CHARACTERS // 32,))
    connection.execute(f"ANALYZE {', '.join(flights.TABLES)}".encode())
    return counts


def _copy(connection: Connection, table: str, lines: Iterable[bytes], rows_max: int | None) -> int:
    found = iter(lines)
    columns = next(found).decode().strip()
    cursor = connection.cursor()
    with cursor.copy(f"COPY {table} ({columns}) FROM STDIN (FORMAT csv, NULL 'NA')".encode()) as copy:
        for piece in _pieces(itertools.islice(found, rows_max)):
            copy.write(piece)
    return cursor.rowcount


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    lines = iter(lines)
    while piece := b"".join(itertools.islice(lines, 4096)):
        yield piece


def _lsn(text: object) -> int:
    """Return a PostgreSQL log position as a number; 0 for none."""
    high, _, low = str(text or "0/0").partition("/")
    return (int(high, 16) << 32) + int(low, 16)


class PostgresSession:
    """Implements `databases.DemoSession`."""

    words: Mapping[str, str] = {
        "a twentieth of": "TABLESAMPLE BERNOULLI (5)",
        "if it is new": "ON CONFLICT DO NOTHING",
        "insert": "INSERT",
        "no gust": "'NaN'",
        "hours into 2013": "timestamptz '2013-01-01Z' + %s * interval '1 hour'",
        "2014": "timestamptz '2014-01-01Z'",
    }

    def __init__(self, url: str, password: str | None = None) -> None:
        self._connection = psycopg.connect(
            url, password=password, autocommit=True, application_name="cdcflow demo writer"
        )

    def execute(self, statement: str, values: Iterable[object] = ()) -> StatementResult:
        found: StatementResult = self._connection.execute(statement.encode(), tuple(values) or None)
        return found

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._connection.transaction() as transaction:
            try:
                yield
            except Undone:
                raise psycopg.Rollback(transaction) from None

    def close(self) -> None:
        self._connection.close()

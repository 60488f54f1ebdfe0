"""Translate Spark's SQL, as far as `cdcflow.tables.merge` uses it, to DuckDB's.

The statements arrive as they would go to Spark. Each word that DuckDB spells differently is listed here and translated;
everything else passes unchanged, so that a function that is new to these statements fails instead of silently meaning
something else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import duckdb

from cdcflow.tables.sql.quotes import quote, quote_text

_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`]|``)*`", re.DOTALL)
_KEPT = re.compile(r"\x00(\d+)\x00")

_WORDS: tuple[tuple[str, str], ...] = (
    (r"\bmax_by\(", "arg_max_null("),  # Spark takes the row of the greatest order; DuckDB skips NULL
    (r"\barray\(", "list_value("),
    (r"\btimestamp_micros\(", "make_timestamptz("),
    (r"\bunix_micros\(CAST\((\S+) AS timestamp\)\)", r"epoch_us(\1)"),  # takes no zone, and adds none
    (r"\bunix_micros\(", "epoch_us("),
    (r"\boctet_length\(", "strlen("),
    (r"\bLEFT SEMI JOIN\b", "SEMI JOIN"),
    (r"\bLEFT ANTI JOIN\b", "ANTI JOIN"),
    (r"<=>", "IS NOT DISTINCT FROM"),
    (r"\belement_at\(", "map_extract_value("),
    (r"\bX(\x00\d+\x00)", r"unhex(\1)"),
    (r"\bexplode\(sequence\(", "unnest(generate_series("),
    (r"\bdiv\b", "//"),
    (r"\btransform\((.*?), x -> ", r"list_transform(\1, lambda x: "),
    (r"\btimestamp\b", "timestamptz"),
    (r"\btimestamp_ntz\b", "timestamp"),
    (r"\barray<([^<>]+)>", r"\1[]"),
    (r"\barray<([^<>]+)>", r"\1[]"),  # for lists
    (r" USING any TBLPROPERTIES \(.*\)$", ""),
    (r"\bADD COLUMNS \((.*)\)$", r"ADD COLUMN \1"),
    (r"^ALTER TABLE \S+ SET TBLPROPERTIES .*$", "SELECT 1"),
)

MACROS = (
    "CREATE MACRO size(a) AS coalesce(len(a), -1)",
    "CREATE MACRO array_except(a, b) AS CASE WHEN a IS NOT NULL AND b IS NOT NULL"
    " THEN list_distinct(list_filter(a, lambda x: NOT list_contains(b, x))) END",
    # For the hexadecimal digits of a number below 2^63.
    "CREATE MACRO conv(digits, old_base, new_base) AS CAST('0x' || digits AS BIGINT)",
    "CREATE MACRO sha2(text, bits) AS sha256(text)",
    "CREATE MACRO shiftright(number, bits) AS number >> bits",
    "CREATE MACRO unix_date(d) AS d - DATE '1970-01-01'",
    # For a NULL Spark prints "null", while printf has no result.
    "CREATE MACRO format_string(f, a, b, c, d) AS CASE WHEN a IS NULL THEN 'null' ELSE printf(f, a, b, c, d) END",
)
"""Spark's functions that DuckDB lacks."""


def connect(threads: int = 1, memory_bytes: int | None = None, spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that has the functions of Spark that merges use. `memory_bytes`: how much memory it may
    use, by default most of the machine's; `spill`: an existing folder for what exceeds that."""
    # Nothing is downloaded: a missing extension is an error.
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": threads,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    if memory_bytes is not None:
        settings["memory_limit"] = f"{memory_bytes}B"
    if spill is not None:
        settings["temp_directory"] = str(spill)
    made = duckdb.connect(config=settings)
    _hide_progress(made)
    # As in Spark's sessions: no result may depend on the machine's time zone.
    made.execute("SET GLOBAL TimeZone = 'UTC'").fetchall()
    for macro in MACROS:
        made.execute(macro).fetchall()
    return made


def connect_again() -> duckdb.DuckDBPyConnection:
    """Open a connection like `connect`, but to the one database that this process shares. Its temporary tables and
    views are separate. Opening a new database takes longer than a small merge of a table."""
    try:
        made = _database().cursor()
        _hide_progress(made)
    except duckdb.Error:  # an internal error ends a database, with all connections to it
        _database.cache_clear()
        made = _database().cursor()
        _hide_progress(made)
    return made


@functools.cache
def _database() -> duckdb.DuckDBPyConnection:
    return connect()


def _hide_progress(connection: duckdb.DuckDBPyConnection) -> None:
    # If it is off, as in a notebook without ipywidgets, DuckDB refuses to set it.
    if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() != [(False,)]:
        connection.execute("SET enable_progress_bar = false").fetchall()


@functools.lru_cache(maxsize=256)
def duckdb_sql(spark_sql: str, given: str = "") -> str:
    """Translate one statement of Spark's to DuckDB's. `given`: the view that replaces `{}`, except inside names and
    texts, because a source's default may be `{}`. Translations are cached: most statements of a merge are the same as
    in the merge before."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    sql = _LITERAL.sub(keep, spark_sql)
    if given:
        sql = sql.replace("{}", given)
    for pattern, words in _WORDS:
        sql = re.sub(pattern, words, sql)
    sql = _calls(sql, "struct", lambda given: "struct_pack(" + ", ".join(f"{a} := {a}" for a in given) + ")")
    sql = _calls(sql, "map", _map)
    sql = _calls(sql, "first", lambda given: f"first_value({given[0]} IGNORE NULLS)")  # for (…, true)
    sql = _calls(sql, "last", lambda given: f"last_value({given[0]} IGNORE NULLS)")
    sql = re.sub(r"(UPDATE SET )(.*)", lambda found: found[1] + _without_table(found[2]), sql)
    return _KEPT.sub(lambda found: _literal(kept[int(found[1])]), sql)


def _literal(text: str) -> str:
    if text[0] == "`":
        return quote(text[1:-1].replace("``", "`"))
    return quote_text(re.sub(r"\\(.)", r"\1", text[1:-1]))


def _map(given: list[str]) -> str:
    pairs = zip(given[::2], given[1::2], strict=True)
    return "MAP {" + ", ".join(f"{k}: {v}" for k, v in pairs) + "}"


def _without_table(assignments: str) -> str:
    """Remove the table's alias from the columns that a MERGE sets; DuckDB does not accept it."""
    return ", ".join(a.removeprefix("t.") for a in _split(assignments))


def _calls(sql: str, function: str, instead: Callable[[list[str]], str]) -> str:
    while found := re.search(rf"\b{function}\(", sql):
        end = next(i for i, depth in _depths(sql, found.end()) if depth < 0)
        sql = sql[: found.start()] + instead(_split(sql[found.end() : end])) + sql[end + 1 :]
    return sql


def _split(listed: str) -> list[str]:
    """Split at the commas outside of brackets."""
    cuts = [i for i, depth in _depths(listed, 0) if depth == 0 and listed[i] == ","]
    ends = [-1, *cuts, len(listed)]
    return [listed[a + 1 : b].strip() for a, b in pairwise(ends)]


def _depths(sql: str, start: int) -> Iterator[tuple[int, int]]:
    depth = 0
    for i in range(start, len(sql)):
        depth += (sql[i] in "([{") - (sql[i] in ")]}")
        yield i, depth

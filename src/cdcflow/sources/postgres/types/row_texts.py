"""The text of a value in its row's digest (`model.digest`), in PostgreSQL's SQL: functions that the tables of types
name. Pure.

Each function takes the quoted name of a column of the table `t`, and the server's name of its type.
"""

from __future__ import annotations


def number(name: str, source: str) -> str:
    """Return a number as `concat` prints it."""
    return f"t.{name}"


def money(name: str, source: str) -> str:
    return f"t.{name}::numeric"


def boolean(name: str, source: str) -> str:
    return f"t.{name}::int"


def hexadecimal(name: str, source: str) -> str:
    return f"""pg_catalog.upper(pg_catalog.encode(t.{name}, 'hex') COLLATE "C")"""


def days(name: str, source: str) -> str:
    since = f"(t.{name} - '1970-01-01'::date)::text"
    return f"CASE WHEN pg_catalog.isfinite(t.{name}) THEN {since} ELSE t.{name}::text END"


def microseconds(name: str, source: str) -> str:
    return f"pg_catalog.trim_scale(extract(epoch FROM t.{name}) * 1000000)"


def with_length(name: str, source: str) -> str:
    """Return the value as a cast to text prints it, after its length in bytes: for types whose output function does the
    same."""
    return _with_length(f"t.{name}::text")


def text(name: str, source: str) -> str:
    """Return text that the server sends unchanged. A cast would drop the padding of char(n)."""
    if source in ("text", "json") or _is_varchar(source):
        return with_length(name, source)
    return _with_length(f"CASE WHEN t.{name} IS NOT NULL THEN pg_catalog.format('%s', t.{name}) END")


def printed_text(name: str, source: str) -> str:
    """Return a value of any other type as a chunk's COPY has it printed. A cast would add a netmask to inet."""
    return with_length(name, source) if _is_varchar(source) else _with_length(output_text(name))


def output_text(name: str) -> str:
    """Return a column printed by its type's own output function, which `format` calls.

    A cast to text is different for some types. A composite with a NULL field is neither NULL nor NOT NULL in SQL, hence
    DISTINCT.
    """
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {name}) END"


def _is_varchar(source: str) -> bool:
    return source.startswith("character varying")


def _with_length(text: str) -> str:
    return f"pg_catalog.octet_length({text}) || ':' || {text}"

"""The status variables of a QUERY event: the session's settings when it ran the statement. Pure.

Each variable is a number, then a value whose length the number determines; nothing separates the variables. So parsing
ends at an unknown number. Variables are not in the order of their numbers: MariaDB 11.5 writes 131 before 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_SQL_MODE, _CHARSETS, _SCHEMAS, _ALTER = 1, 4, 12, 130
_COMMITS, _ROLLS_BACK = 4, 8
_STARTS = 2


@dataclass(frozen=True, slots=True)
class StatusVariables:
    """The settings in a QUERY event. `client`: the collation number of `character_set_client`; None if the event does
    not contain it. `is_done`: the statement was executed. MariaDB with `binlog_alter_two_phase` also logs the start of
    an ALTER, and its rollback, with the same text. `schemas`: those of all tables that the statement used, also through
    views, triggers and functions (MySQL, for a statement that changes rows); None if the event does not list them."""

    sql_mode: int = 0
    client: int | None = None
    is_done: bool = True
    schemas: tuple[str, ...] | None = None


def status_variables(data: bytes) -> StatusVariables:
    """Parse the status variables of one event."""
    found = _values(data)
    client = int.from_bytes(found[_CHARSETS][:2], "little") if _CHARSETS in found else None
    phase = found.get(_ALTER, b"\0")[0]
    return StatusVariables(
        int.from_bytes(found.get(_SQL_MODE, b""), "little"),
        client,
        not phase & (_STARTS | _ROLLS_BACK),
        _listed_schemas(found.get(_SCHEMAS, b"")),
    )


def _listed_schemas(value: bytes) -> tuple[str, ...] | None:
    """Return the schemas in a list; None if it has none, or names no schema: there were too many, or a table that
    foreign keys reference was used."""
    names = value[1:].split(b"\0")[:-1]
    return tuple(name.decode(errors="replace") for name in names) if names and all(names) else None


def _values(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        length = _LENGTHS.get(data[at])
        if length is None:
            return found
        end = at + 1 + length(data[at + 1 :])
        if end > len(data):
            return found
        found[data[at]] = data[at + 1 : end]
        at = end
    return found


def _fixed_size(size: int) -> Callable[[bytes], int]:
    return lambda _: size


def _text(rest: bytes) -> int:
    return 1 + rest[0] if rest else 1


def _two_texts(rest: bytes) -> int:
    first = _text(rest)
    return first + _text(rest[first:])


def _schemas(rest: bytes) -> int:
    """Return the length of a list of names: a count, and as many names that end with a zero byte; a count of 254 or
    more means no names."""
    count = rest[0] if rest else 0
    at = 1
    for _ in range(count if count < 254 else 0):
        found = rest.find(b"\0", at)
        if found < 0:
            return len(rest) + 1
        at = found + 1
    return at


def _alter(rest: bytes) -> int:
    return 9 if rest[:1] and rest[0] & (_COMMITS | _ROLLS_BACK) else 1


def _collations(rest: bytes) -> int:
    return 1 + 4 * rest[0] if rest else 1


_LENGTHS: Mapping[int, Callable[[bytes], int]] = {
    0: _fixed_size(4),  # flags
    _SQL_MODE: _fixed_size(8),
    2: lambda rest: _text(rest) + 1,  # a catalog, with a zero
    3: _fixed_size(4),  # auto_increment
    _CHARSETS: _fixed_size(6),
    5: _text,  # time zone
    6: _text,  # a catalog
    7: _fixed_size(2),  # lc_time_names
    8: _fixed_size(2),  # the database's character set
    9: _fixed_size(8),  # tables that an update changes
    10: _fixed_size(4),  # the length that was written
    11: _two_texts,  # user and host
    _SCHEMAS: _schemas,
    13: _fixed_size(3),  # microseconds
    16: _fixed_size(1),  # explicit_defaults_for_timestamp
    17: _fixed_size(8),  # the transaction's number
    18: _fixed_size(2),  # default_collation_for_utf8mb4
    19: _fixed_size(1),  # sql_require_primary_key
    20: _fixed_size(1),  # default_table_encryption
    128: _fixed_size(3),  # MariaDB: microseconds
    129: _fixed_size(8),  # the transaction's number
    _ALTER: _alter,
    131: _collations,
}

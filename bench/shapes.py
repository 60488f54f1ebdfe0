"""The tables that are measured, and how their rows are generated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A table: its columns as (name, type, expression of `i`). The first one is the key, `id`."""

    name: str
    columns: tuple[tuple[str, str, str], ...]

    @property
    def create(self) -> str:
        listed = ", ".join(f"{name} {kind}" for name, kind, _ in self.columns)
        return f"CREATE TABLE {self.name} ({listed}, PRIMARY KEY (id))"

    def insert(self, first: str, last: str) -> str:
        """An INSERT of the rows `first` to `last` (inclusive; expressions)."""
        listed = ", ".join(expression for _, _, expression in self.columns)
        return f"INSERT INTO {self.name} SELECT {listed} FROM generate_series(({first})::bigint, {last}) i"


STAMP = "timestamptz '2024-01-01 00:00:00+00' + i * interval '1.5 seconds'"


def scattered(modulus: int, factor: int) -> str:
    """A number below a prime that depends on `i` and looks like chance, also to a codec that stores differences."""
    return f"(i * i % {modulus} * {factor} % {modulus})"


NARROW = Shape(
    "narrow",
    (
        ("id", "bigint", "i"),
        ("customer", "integer", scattered(100_003, 7919)),
        ("status", "text", f"CASE {scattered(100_019, 31)} % 7 WHEN 0 THEN 'open' WHEN 1 THEN 'sent' ELSE 'paid' END"),
        ("note", "text", "'order number ' || " + scattered(2_147_483_647, 48_271)),
        ("amount", "numeric(10,2)", scattered(9_999_991, 265_443) + " / 100.0"),
        ("placed", "timestamptz", f"{STAMP} + {scattered(1_000_003, 16_807)} * interval '1 microsecond'"),
    ),
)

TEN = Shape(
    "ten",
    (
        ("id", "bigint", "i"),
        ("customer", "integer", "i % 1000"),
        ("kind", "smallint", "i % 7"),
        ("is_open", "boolean", "i % 2 = 0"),
        ("status", "text", "CASE i % 3 WHEN 0 THEN 'open' WHEN 1 THEN 'paid' ELSE 'sent' END"),
        ("note", "text", "CASE WHEN i % 5 > 0 THEN 'order number ' || i END"),
        ("amount", "numeric(12,2)", "(i % 1000000) / 100.0"),
        ("placed", "timestamptz", STAMP),
        ("due", "date", "date '2024-01-01' + (i % 1000)::int"),
        ("region", "bigint", "i * 7919 % 1000003"),
    ),
)

_CYCLE = (
    ("integer", "(i % 100000)::int + {n}"),
    ("text", "'value {n} of ' || i"),
    ("bigint", "i * {n}"),
    ("boolean", "i % {n} = 0"),
    ("timestamptz", STAMP),
    ("text", "CASE WHEN i % 4 > 0 THEN 'note ' || i % 100 END"),
)

SIXTY = Shape(
    "sixty",
    (
        ("id", "bigint", "i"),
        *((f"c{n}", _CYCLE[n % len(_CYCLE)][0], _CYCLE[n % len(_CYCLE)][1].format(n=n + 1)) for n in range(1, 60)),
    ),
)

WIDE = Shape(
    "wide",
    (
        ("id", "bigint", "i"),
        ("customer", "integer", "i % 1000"),
        ("body", "text", " || ".join(f"encode(sha512((i * 15 + {n})::text::bytea), 'hex')" for n in range(15))),
        ("placed", "timestamptz", STAMP),
    ),
)
"""Rows of 2 kB that stay in the table, just under the size at which values move out of line. Hexadecimal digits that
never repeat: no codec saves more than half of them."""

"""Keys as SQL: conditions for the rows of a table that have one of these keys, compared by the server alone (W16).

Key values go to the server as text and are cast there to the column's own type, so that its equality and its index
decide. Dates and times go as numbers: the text of a year before 1 or after 9999 is not everywhere the same. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import KeySet
from cdcflow.sources.postgres.connection import literal, quote_name
from cdcflow.sources.postgres.types import DescribedTable

_DAY_US = 86_400_000_000


def condition(keys: KeySet, described: DescribedTable) -> str:
    """Return a WHERE condition on the table as `t`.

    Raises:
        ConfigurationError: a key column's type cannot be looked up by value.
    """
    table = described.table
    columns = {c.name: c for c in table.columns}
    arrays, casts = [], []
    for number, name in enumerate(table.key):
        values = keys.keys.column(name).combine_chunks()
        texts, expression = _texts(values, str(table.id), name)
        arrays.append(f"{literal(_array(texts))}::pg_catalog.text[]")
        cast = expression(f"k.k{number}")
        # A dropped type has only a number instead of a name here, but then its table is gone too, and no rows are read.
        casts.append(f"({cast})::{columns[name].type.source}")
    names = ", ".join(f"t.{quote_name(name)}" for name in table.key)
    aliases = ", ".join(f"k{i}" for i in range(len(arrays)))
    wanted = f"unnest({', '.join(arrays)}) AS k ({aliases})"
    return f"({names}) IN (SELECT {', '.join(casts)} FROM {wanted})"  # noqa: S608  quoted by `connection`


Expression = Callable[[str], str]


def _texts(values: pa.Array, table: str, column: str) -> tuple[list[str], Expression]:
    kind = values.type
    if pt.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if pt.is_timestamp(kind):
        return _as_text(values.cast(pa.int64())), lambda k: _timestamp(k, utc=kind.tz is not None)
    if pt.is_date32(kind):
        return _as_text(values.cast(pa.int32())), lambda k: f"'1970-01-01'::pg_catalog.date + {k}::int"
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return ["\\x" + v.hex() for v in values.to_pylist()], _same
    if pt.is_struct(kind):
        return [_interval(v) for v in values.to_pylist()], _same
    if pt.is_nested(kind):
        raise ConfigurationError(
            f"key column {table}.{column} is an array, which cannot be looked up by value",
            remedy="run ALTER TABLE … REPLICA IDENTITY USING INDEX … with a unique index on other columns",
            runbook="table-not-capturable",
        )
    return _as_text(values), _same


def _as_text(values: pa.Array) -> list[str]:
    texts: list[str] = pc.cast(values, pa.string()).to_pylist()
    return texts


def _same(k: str) -> str:
    return k


def _timestamp(k: str, *, utc: bool) -> str:
    # Whole days and the remainder are added separately, because an interval times a number is computed in floating
    # point.
    stamp = (
        f"'1970-01-01'::pg_catalog.timestamp + ({k}::int8 / {_DAY_US}) * '1 day'::pg_catalog.interval"
        f" + ({k}::int8 % {_DAY_US}) * '1 microsecond'::pg_catalog.interval"
    )
    return f"({stamp}) AT TIME ZONE 'UTC'" if utc else stamp


def _interval(value: dict[str, int]) -> str:
    return f"{value['months']} mons {value['days']} days {value['microseconds']} microseconds"


def _array(texts: list[str]) -> str:
    """Return the server's literal for an array of text."""
    escaped = (t.replace("\\", "\\\\").replace('"', '\\"') for t in texts)
    return "{" + ",".join(f'"{t}"' for t in escaped) + "}"

"""Random values of every kind: each must be unchanged after passing through the server's formats."""

from __future__ import annotations

import datetime as dt
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.postgres.message_bytes import (
    attribute,
    begin,
    commit,
    copy_rows,
    insert,
    numeric_bytes,
    numeric_modifier,
    relation,
    table,
    xlog,
)
from tests.support.postgres.wire import Spools

from cdcflow.capture.interleave.messages import Committed
from cdcflow.model.change import Run
from cdcflow.sources.engine import buffers
from cdcflow.sources.postgres.copy import decode_copy
from cdcflow.sources.postgres.decoders import Compiled
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder
from cdcflow.sources.postgres.types import DescribedTable

EXAMPLES = settings(max_examples=int(os.environ.get("CDCFLOW_EXAMPLES", "12")), deadline=None)


@dataclass(frozen=True)
class Way:
    """One type: how to make values, how the server writes them (as text, in binary), and what they become."""

    oid: int
    values: st.SearchStrategy[Any]
    text: Callable[[Any], str]
    binary: Callable[[Any], bytes] | None
    cell: Callable[[Any], object] = lambda v: v
    modifier: int = -1
    element: int = 0


def _numeric_binary(value: Decimal) -> bytes:
    return numeric_bytes(f"{value:f}")


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    top = 10**precision - 1
    return st.integers(-top, top).map(lambda n: Decimal(n).scaleb(-scale, context=_EXACT))


_EXACT = Context(prec=200)


def _exactly(digits: int, scale: int) -> Decimal:
    return Decimal(digits).scaleb(-scale, context=_EXACT)


_DAY0 = dt.date(2000, 1, 1)
_MOMENT0 = dt.datetime(2000, 1, 1)


def _micros(value: dt.datetime) -> int:
    return (value - _MOMENT0) // dt.timedelta(microseconds=1)


def _moment(value: dt.datetime, zone: str = "") -> str:
    text = f"{value.year:04d}-{value.month:02d}-{value.day:02d} {value.hour:02d}:{value.minute:02d}:{value.second:02d}"
    return text + (f".{value.microsecond:06d}".rstrip("0") if value.microsecond else "") + zone


def _clock(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")


def _zone(west: int) -> str:
    minutes, seconds = divmod(abs(west), 60)
    text = ("-" if west > 0 else "+") + f"{minutes // 60:02d}"
    return text + (f":{minutes % 60:02d}" if minutes % 60 or seconds else "") + (f":{seconds:02d}" if seconds else "")


def _bits(text: str) -> bytes:
    padded = text.ljust(-(-len(text) // 8) * 8, "0")
    return struct.pack(">I", len(text)) + bytes(int(padded[i : i + 8], 2) for i in range(0, len(padded), 8))


def _interval(value: tuple[int, int, int]) -> str:
    """As IntervalStyle postgres prints it."""
    months, days, micros = value
    years, months = (abs(months) // 12 * (1 if months > 0 else -1), abs(months) % 12 * (1 if months > 0 else -1))
    parts = []
    negative = False
    for number, word in ((years, "year"), (months, "mon"), (days, "day")):
        if number:
            sign = "+" if negative and number > 0 else ""
            negative = number < 0
            parts.append(f"{sign}{number} {word}" + ("" if number == 1 else "s"))
    if micros or not parts:
        sign = "-" if micros < 0 else ("+" if negative else "")
        parts.append(sign + _clock(abs(micros)))
    return " ".join(parts)


def _element(value: str | None) -> str:
    if value is None:
        return "NULL"
    special = any(c in '{},"\\' or c.isspace() for c in value) or value == "" or value.upper() == "NULL"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if special else value


def _array_binary(oid: int, values: list[bytes | None]) -> bytes:
    if not values:
        return struct.pack(">iii", 0, 0, oid)
    out = struct.pack(">iiiii", 1, None in values, oid, len(values), 1)
    return out + b"".join(struct.pack(">i", -1) if v is None else struct.pack(">i", len(v)) + v for v in values)


def _array(values: list[str | None]) -> str:
    return "{" + ",".join(map(_element, values)) + "}"


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
ELEMENT = TEXT | st.text(st.sampled_from('\\\\",{} aN\n'), max_size=8) | st.sampled_from(["NULL", "null"])
NOT_NAN = st.floats(allow_nan=False)

WAYS = {
    "bool": Way(16, st.booleans(), lambda v: "t" if v else "f", lambda v: bytes([v])),
    "int2": Way(21, st.integers(-(2**15), 2**15 - 1), str, lambda v: struct.pack(">h", v)),
    "int4": Way(23, st.integers(-(2**31), 2**31 - 1), str, lambda v: struct.pack(">i", v)),
    "int8": Way(20, st.integers(-(2**63), 2**63 - 1), str, lambda v: struct.pack(">q", v)),
    "oid": Way(26, st.integers(0, 2**32 - 1), str, lambda v: struct.pack(">I", v)),
    "float8": Way(701, NOT_NAN, repr, lambda v: struct.pack(">d", v), lambda v: struct.pack(">d", v)),
    "float4": Way(
        700, st.floats(allow_nan=False, width=32), repr, lambda v: struct.pack(">f", v), lambda v: struct.pack(">d", v)
    ),
    "numeric_10_2": Way(1700, _decimals(10, 2), "{:f}".format, _numeric_binary, modifier=numeric_modifier(10, 2)),
    "numeric_18_7": Way(1700, _decimals(18, 7), "{:f}".format, _numeric_binary, modifier=numeric_modifier(18, 7)),
    "numeric_38_9": Way(1700, _decimals(38, 9), "{:f}".format, _numeric_binary, modifier=numeric_modifier(38, 9)),
    "numeric_76_38": Way(1700, _decimals(76, 38), "{:f}".format, _numeric_binary, modifier=numeric_modifier(76, 38)),
    "numeric_5_5": Way(1700, _decimals(5, 5), "{:f}".format, _numeric_binary, modifier=numeric_modifier(5, 5)),
    "numeric_2_6": Way(1700, _decimals(2, 6), "{:f}".format, _numeric_binary, modifier=numeric_modifier(2, 6)),
    "numeric_3_minus_2": Way(
        1700,
        st.integers(-999, 999).map(lambda n: Decimal(n * 100)),
        "{:f}".format,
        _numeric_binary,
        modifier=numeric_modifier(3, -2),
    ),
    "numeric": Way(
        1700,
        st.tuples(st.integers(-(10**40), 10**40), st.integers(0, 30)).map(lambda v: _exactly(*v)),
        "{:f}".format,
        _numeric_binary,
        "{:f}".format,
    ),
    "money": Way(
        790,
        _decimals(18, 2),
        lambda v: f"{'-' if v < 0 else ''}${abs(v):,.2f}",
        lambda v: struct.pack(">q", int(v.scaleb(2))),
    ),
    "text": Way(25, TEXT, str, str.encode),
    "jsonb": Way(3802, TEXT, str, lambda v: b"\x01" + v.encode()),
    "bytea": Way(17, st.binary(max_size=20), lambda v: "\\x" + v.hex(), lambda v: v),
    "date": Way(1082, st.dates(), lambda v: f"{v.year:04d}-{v:%m-%d}", lambda v: struct.pack(">i", (v - _DAY0).days)),
    "timestamp": Way(1114, st.datetimes(), _moment, lambda v: struct.pack(">q", _micros(v))),
    "timestamptz": Way(
        1184,
        st.datetimes(),
        lambda v: _moment(v, "+00"),
        lambda v: struct.pack(">q", _micros(v)),
        lambda v: v.replace(tzinfo=dt.UTC),
    ),
    "time": Way(1083, st.integers(0, 86_400_000_000), _clock, lambda v: struct.pack(">q", v), _clock),
    "timetz": Way(
        1266,
        st.tuples(st.integers(0, 86_400_000_000), st.integers(-57599, 57599)),
        lambda v: _clock(v[0]) + _zone(v[1]),
        lambda v: struct.pack(">qi", *v),
        lambda v: _clock(v[0]) + _zone(v[1]),
    ),
    "interval": Way(
        1186,
        st.tuples(
            st.integers(-(2**31) + 1, 2**31 - 1),
            st.integers(-(2**31) + 1, 2**31 - 1),
            st.integers(-(2**63) + 1, 2**63 - 1),
        ),
        _interval,
        lambda v: struct.pack(">qii", v[2], v[1], v[0]),
        lambda v: {"months": v[0], "days": v[1], "microseconds": v[2]},
    ),
    "numeric_array": Way(
        1231,
        st.lists(st.none() | _decimals(30, 4), max_size=60),
        lambda v: _array([None if e is None else f"{e:f}" for e in v]),
        lambda v: _array_binary(1700, [None if e is None else _numeric_binary(e) for e in v]),
        lambda v: [None if e is None else f"{e:f}" for e in v],
        element=1700,
    ),
    "uuid": Way(2950, st.uuids(), str, lambda v: v.bytes, str),
    "varbit": Way(1562, st.text("01", max_size=20), str, _bits),
    "inet": Way(869, TEXT, str, None),
    "text_array": Way(
        1009,
        st.lists(st.none() | ELEMENT, max_size=5),
        _array,
        lambda v: _array_binary(25, [None if e is None else e.encode() for e in v]),
        element=25,
    ),
    "int4_array": Way(
        1007,
        st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=5),
        lambda v: _array([None if e is None else str(e) for e in v]),
        lambda v: _array_binary(23, [None if e is None else struct.pack(">i", e) for e in v]),
        element=23,
    ),
}


def _streamed(
    described: DescribedTable, cells: Sequence[bytes | None], compiled: Compiled | None, *, binary: bool
) -> pa.Array:
    decoder = PgoutputDecoder(
        describe=lambda _: described,
        open_spool=Spools(),
        spool_bytes_max=1 << 30,
        binary=binary,
        skip_until=0,
        compiled=compiled,
    )
    rows = [
        insert(1, [str(i).encode() if not binary else struct.pack(">i", i), c], binary=binary)
        for i, c in enumerate(cells)
    ]
    (event,) = decoder.decode([xlog(m) for m in (begin(7, 50), relation(described), *rows, commit(64))])
    assert isinstance(event, Committed)
    assert isinstance(event.run, Run)
    return event.run.batches[0].rows.column("v")


def _cells(array: pa.Array) -> list[object]:
    array.validate(full=True)
    if pa.types.is_floating(array.type):
        return [None if v is None else struct.pack(">d", v) for v in array.to_pylist()]
    return list(array.to_pylist())


@pytest.mark.parametrize("name", WAYS)
def test_random_values_are_decoded_unchanged(compiled: Compiled | None, name: str) -> None:
    """Every decoder works on whole columns; a place computed wrongly mixes up the values of neighbours (T38)."""
    way = WAYS[name]
    described = table(
        "t", 1, [attribute("id", 23, key=True), attribute("v", way.oid, way.modifier, element=way.element)]
    )

    @EXAMPLES
    @given(st.lists(st.none() | way.values, min_size=1, max_size=12))
    def check(values: list[Any]) -> None:
        expected = [None if v is None else way.cell(v) for v in values]
        as_text = [None if v is None else way.text(v).encode() for v in values]
        assert _cells(_streamed(described, as_text, compiled, binary=False)) == expected
        copied = as_text
        if way.binary is not None:
            as_binary = copied = [None if v is None else way.binary(v) for v in values]
            assert _cells(_streamed(described, as_binary, compiled, binary=True)) == expected
        messages = copy_rows([[struct.pack(">i", i), c] for i, c in enumerate(copied)])
        for data in (messages, b"".join(messages), b"".join(messages)[19:-2]):
            rows = decode_copy(data, described, compiled)
            assert rows.schema == described.table.row_schema
            assert _cells(rows.column("v")) == expected

    check()


@pytest.mark.parametrize(
    ("precision", "scale", "arrow"),
    [
        (10, 2, pa.decimal128(10, 2)),
        (38, 38, pa.decimal128(38, 38)),
        (39, 0, pa.decimal256(39, 0)),
        (76, 76, pa.decimal256(76, 76)),
        (77, 0, pa.string()),
        (3, -2, pa.decimal128(5, 0)),
        (3, 5, pa.decimal128(5, 5)),
        (1, 1000, pa.string()),
        (70, -10, pa.string()),
    ],
)
def test_a_numeric_becomes_the_smallest_decimal_that_holds_all_of_it(
    precision: int, scale: int, arrow: pa.DataType
) -> None:
    """A scale below zero or above the precision is legal since 15; what no decimal holds is text (T02)."""
    described = table("t", 1, [attribute("v", 1700, numeric_modifier(precision, scale))])
    assert described.table.columns[0].type.arrow == arrow


def test_numeric_as_large_as_the_server_has_them_is_read(compiled: Compiled | None) -> None:
    """Its number of groups is unsigned: a count that appears negative was taken for a broken connection, again and
    again."""
    groups = [1000, *[0] * 36_862, 10]
    cell = struct.pack(">HhHH", len(groups), 32_767, 0, 16_383) + struct.pack(f">{len(groups)}H", *groups)
    described = table("t", 1, [attribute("v", 1700)])
    (value,) = decode_copy(copy_rows([[cell]]), described, compiled).column("v").to_pylist()
    assert value == "1" + "0" * 131_071 + "." + "0" * 16_382 + "1"


@given(st.lists(st.binary(max_size=9), max_size=12), st.integers(1, 20))
@EXAMPLES
def test_bytes_are_gathered_in_pieces_of_any_size(values: list[bytes], at_once: int) -> None:
    """What bounds the memory of gathering must not show in what is gathered; values repeat and go backwards here."""
    source = np.frombuffer(b"".join(values) + bytes(8), np.uint8)
    ends = np.cumsum([0, *map(len, values)])
    order = [*range(len(values)), *reversed(range(len(values)))]
    start = ends[:-1][order].astype(np.int64)
    size = np.array([len(values[i]) for i in order], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffers, "_GATHERED_AT_ONCE", at_once)
        data, offsets = buffers.gather(source, start, size)
    assert data.tobytes() == b"".join(values[i] for i in order)
    assert np.diff(offsets).tolist() == size.tolist()

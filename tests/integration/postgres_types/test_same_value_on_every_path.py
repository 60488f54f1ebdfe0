"""One value, four ways out of the server: COPY of a chunk, the stream as text, the stream in binary, and the
server's own word for it. All must agree, for every type, at the edges of what it can hold."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.support.postgres.wire import Lab

from cdcflow.capture.interleave.messages import Committed
from cdcflow.model.change import Run

pytestmark = pytest.mark.postgres

Oracle = Callable[[str], object]


@dataclass(frozen=True)
class Kind:
    """A column type, values as SQL text, and the server's own text for a value with what cdcflow should decode.

    `word` is an SQL expression over v that returns a text; `oracle` turns that into the Python value of the Arrow cell.
    """

    type_text: str
    arrow: pa.DataType
    values: tuple[str, ...]
    word: str = "format('%s', v)"
    oracle: Oracle = str
    binary: bool = True
    setup: str = ""
    since: int = 0
    extension: str = ""


LISTS = pa.list_(pa.field("element", pa.string()))
INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])
INTERVAL_WORD = (
    "concat_ws(' ', extract(year from v) * 12 + extract(month from v), extract(day from v), "
    "(extract(hour from v) * 3600000000 + extract(minute from v) * 60000000 + extract(microseconds from v))"
    "::numeric(40,0))"
)
BY_DAYS = "(v - date '1970-01-01')::text"
BY_MICROS = "(extract(epoch from v) * 1000000)::numeric(40,0)::text"
_WIDE_TEXT = "'" + "x" * 4000 + "'"


def _bits(width: str) -> Oracle:
    return lambda word: struct.pack(width, float(word))


def _interval(word: str) -> object:
    months, days, micros = word.split(" ")
    return {"months": int(months), "days": int(days), "microseconds": int(micros)}


def _list(word: str) -> list[str | None]:
    """The oracle's own way: the server unnests, and ends each element with a character that none has."""
    return [None if e == "\x02" else e for e in word.split("\x01")[:-1]]


UNNESTED = (
    "(SELECT coalesce(string_agg("
    "CASE WHEN e IS NULL THEN U&'\\0002' ELSE format('%s', e) END || U&'\\0001', '' ORDER BY n), '') "
    "FROM unnest(v) WITH ORDINALITY AS u(e, n) WHERE v IS NOT NULL)"
)
# unnest of an array of composites gives columns, so its elements are taken one by one.
SUBSCRIPTED = (
    "(SELECT coalesce(string_agg("
    "CASE WHEN v[n] IS NULL THEN U&'\\0002' ELSE format('%s', v[n]) END || U&'\\0001', '' ORDER BY n), '') "
    "FROM generate_series(1, array_length(v, 1)) AS n)"
)

KINDS = {
    "bool": Kind("bool", pa.bool_(), ("'t'", "'f'"), oracle=lambda w: w == "t"),
    "int2": Kind("int2", pa.int16(), ("-32768", "32767", "0", "-1"), oracle=int),
    "int4": Kind("int4", pa.int32(), ("-2147483648", "2147483647", "0", "-1"), oracle=int),
    "int8": Kind("int8", pa.int64(), ("-9223372036854775808", "9223372036854775807", "0", "-1"), oracle=int),
    "oid": Kind("oid", pa.int64(), ("0", "4294967295", "2147483648"), oracle=int),
    "float4": Kind(
        "float4",
        pa.float32(),
        ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1e-45", "3.4028235e38", "0.1", "16777217", "1.1754942e-38"),
        oracle=_bits("<f"),
    ),
    "float8": Kind(
        "float8",
        pa.float64(),
        (
            "'NaN'",
            "'Infinity'",
            "'-Infinity'",
            "'-0'",
            "5e-324",
            "1.7976931348623157e308",
            "0.1",
            "2.2250738585072011e-308",
            "9007199254740993",
        ),
        oracle=_bits("<d"),
    ),
    "numeric_10_2": Kind(
        "numeric(10,2)",
        pa.decimal128(10, 2),
        ("0", "-0.01", "99999999.99", "-99999999.99", "1.5", "10000", "0.1"),
        oracle=Decimal,
    ),
    "numeric_18_9": Kind(
        "numeric(18,9)", pa.decimal128(18, 9), ("0.000000001", "-999999999.999999999", "10000.0001"), oracle=Decimal
    ),
    "numeric_38_10": Kind(
        "numeric(38,10)",
        pa.decimal128(38, 10),
        (
            "9999999999999999999999999999.9999999999",
            "-9999999999999999999999999999.9999999999",
            "0.0000000001",
            "-1",
            "0",
        ),
        oracle=Decimal,
    ),
    "numeric_76_3": Kind(
        "numeric(76,3)",
        pa.decimal256(76, 3),
        ("9" * 73 + ".999", "-" + "9" * 73 + ".999", "0.001", "-0.001"),
        oracle=Decimal,
    ),
    "numeric_negative_scale": Kind(
        "numeric(3,-2)", pa.decimal128(5, 0), ("99900", "-99900", "100", "0", "149"), oracle=Decimal, since=150000
    ),
    "numeric_scale_above_precision": Kind(
        "numeric(3,5)", pa.decimal128(5, 5), ("0.00999", "-0.00001", "0"), oracle=Decimal, since=150000
    ),
    "numeric_huge": Kind(
        "numeric(200,100)", pa.string(), ("9" * 100 + "." + "9" * 100, "-0." + "0" * 99 + "1", "'NaN'")
    ),
    "numeric": Kind(
        "numeric",
        pa.string(),
        (
            *("1.50", "1.500", "-0.000000000001", "'NaN'", "1e100", "0", "'Infinity'", "'-Infinity'", "0.000", "-7"),
            *("10000", "99990000.0001", "-12345678901234567890.5", "1e-300", "0.00012340", "100000000", "9999"),
        ),
    ),
    "text": Kind(
        "text", pa.string(), ("''", "' '", "'NULL'", "E'a\\tb\\nc\\\\'", "'Zoë 🐘'", "U&'\\FFFD'", _WIDE_TEXT)
    ),
    "varchar": Kind("varchar(5)", pa.string(), ("''", "'abcde'", "'ab   '", "'ééééé'")),
    "char": Kind("char(5)", pa.string(), ("''", "'ab'", "'abcde'", "'é'")),
    "char_internal": Kind('"char"', pa.string(), ("'a'", "''"), binary=False),
    "name": Kind("name", pa.string(), ("'a'", "''", "'" + "n" * 63 + "'")),
    "bytea": Kind(
        "bytea",
        pa.binary(),
        ("''", "'\\x00ff5c'", "decode('" + "00ff" * 500 + "', 'hex')"),
        word="encode(v, 'hex')",
        oracle=bytes.fromhex,
    ),
    "date": Kind(
        "date",
        pa.date32(),
        (
            "'2024-02-29'",
            "'1970-01-01'",
            "'0001-01-01'",
            "'0001-12-31 BC'",
            "'4714-11-24 BC'",
            "'9999-12-31'",
            "'10000-01-01'",
            "'5874897-12-31'",
            "'0044-03-15 BC'",
            "'1900-03-01'",
        ),
        word=BY_DAYS,
        oracle=int,
    ),
    "timestamp": Kind(
        "timestamp",
        pa.timestamp("us"),
        (
            "'2024-02-29 23:59:59.999999'",
            "'1970-01-01'",
            "'1969-12-31 23:59:59.5'",
            "'4714-11-24 00:00:00 BC'",
            "'0001-01-01 00:00:00.000001 BC'",
            "'9999-12-31 23:59:59.999999'",
            "'10000-01-01'",
            "'294246-12-31 23:59:59.999999'",
            "'2024-01-01 00:00:00.1'",
        ),
        word=BY_MICROS,
        oracle=int,
    ),
    "timestamptz": Kind(
        "timestamptz",
        pa.timestamp("us", tz="UTC"),
        (
            "'2024-02-29 23:59:59.999999+14'",
            "'1970-01-01 UTC'",
            "'1883-11-18 12:03:58 America/New_York'",
            "'4714-11-24 00:00:00 UTC BC'",
            "'294246-12-31 23:59:59.999999 UTC'",
            "'2024-03-31 02:30 Europe/Berlin'",
            "'0300-02-03 04:05:06.7 UTC BC'",
        ),
        word=BY_MICROS,
        oracle=int,
    ),
    "timestamp_0": Kind(
        "timestamp(0)",
        pa.timestamp("us"),
        ("'2024-01-01 00:00:00.5'", "'2024-01-01 00:00:00.4999'"),
        word=BY_MICROS,
        oracle=int,
    ),
    "time": Kind(
        "time", pa.string(), ("'00:00'", "'24:00:00'", "'23:59:59.999999'", "'01:02:03.1'", "'01:02:03.000010'")
    ),
    "timetz": Kind(
        "timetz",
        pa.string(),
        ("'24:00:00+00'", "'00:00:00-15:59:59'", "'12:00:00.5+05:30'", "'01:02:03+00:00:07'", "'01:02:03-08'"),
    ),
    "interval": Kind(
        "interval",
        INTERVAL,
        (
            "'0'",
            "'1 year 2 months 3 days 04:05:06.789'",
            "'-1 year -2 months +3 days -04:05:06.000001'",
            "'-00:00:00.000001'",
            "'178000000 years'",
            "'-178000000 years 1 month'",
            "'2147483647:59:59.999999'",
            "'-2147483647:59:59.999999'",
            "'1 mon -1 day'",
            "'2147483647 days'",
            "'-1 days +1 second'",
            "'1 day'",
            "'11 mons'",
        ),
        word=INTERVAL_WORD,
        oracle=_interval,
    ),
    # Before 15 an interval of more than 2,147,483,647 hours is out of range.
    "interval_of_most_hours": Kind(
        "interval",
        INTERVAL,
        ("'2562047788:00:54.775807'", "'-2562047788:00:54.775807'"),
        word=INTERVAL_WORD,
        oracle=_interval,
        since=150000,
    ),
    "uuid": Kind(
        "uuid",
        pa.string(),
        (
            "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'",
            "'00000000-0000-0000-0000-000000000000'",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        ),
    ),
    "json": Kind("json", pa.string(), ('\'{"b": 1,  "a": [null, "\\u00e9"]}\'', "'null'", "'\"\"'")),
    "jsonb": Kind("jsonb", pa.string(), ('\'{"b": 1,  "a": [null, 1e400]}\'', "'null'", "'{}'")),
    "inet": Kind("inet", pa.string(), ("'192.168.0.1'", "'192.168.0.1/24'", "'::1'", "'2001:db8::/32'"), binary=False),
    "cidr": Kind("cidr", pa.string(), ("'10.0.0.0/8'", "'10.1.2.3/32'", "'::/0'"), binary=False),
    "macaddr": Kind("macaddr", pa.string(), ("'08:00:2b:01:02:03'",), binary=False),
    "macaddr8": Kind("macaddr8", pa.string(), ("'08:00:2b:01:02:03:04:05'",), binary=False),
    "bit": Kind("bit(9)", pa.string(), ("B'000000001'", "B'111111111'", "B'100000000'")),
    "varbit": Kind("varbit", pa.string(), ("B''", "B'0'", "B'00000001'", "B'0101010101010'")),
    "money": Kind(
        "money",
        pa.decimal128(19, 2),
        ("'0'", "'-0.01'", "'92233720368547758.07'", "'-92233720368547758.08'", "'1234.5'"),
        word="v::numeric::text",
        oracle=Decimal,
    ),
    "xml": Kind(
        "xml", pa.string(), ("'<a b=\"1\">é</a>'", '\'<?xml version="1.0" encoding="UTF-8"?><a/>\''), binary=False
    ),
    "tsvector": Kind("tsvector", pa.string(), ("$$'it''s':1A,3 fat:2$$", "''"), binary=False),
    "tsquery": Kind("tsquery", pa.string(), ("$$'fat cat' & !rat:AB$$",), binary=False),
    "int4range": Kind("int4range", pa.string(), ("'[1,5)'", "'empty'", "'(,)'"), binary=False),
    "tstzrange": Kind("tstzrange", pa.string(), ("'[2024-03-31 02:30+02,infinity)'",), binary=False),
    "multirange": Kind("nummultirange", pa.string(), ("'{[1.0,2),[3,4]}'", "'{}'"), binary=False),
    "point": Kind("point", pa.string(), ("'(0.1,-1e300)'",), binary=False),
    "box": Kind("box", pa.string(), ("'(1,2),(3,4)'",), binary=False),
    "int2vector": Kind("int2vector", pa.string(), ("'1 2 3'", "''"), binary=False),
    "regclass": Kind(
        "regclass",
        pa.string(),
        ("'pg_class'", '\'"Odd "" name"\''),
        binary=False,
        setup='CREATE TABLE "Odd "" name" (id int PRIMARY KEY)',
    ),
    "pg_lsn": Kind("pg_lsn", pa.string(), ("'16/B374D848'",), binary=False),
    "enum": Kind(
        "mood",
        pa.string(),
        ("'sad'", "'it''s \"so, so\"'", "''"),
        setup="CREATE TYPE mood AS ENUM ('sad', 'it''s \"so, so\"', '')",
    ),
    "domain": Kind(
        "cents",
        pa.decimal128(12, 2),
        ("1.5", "-0.01"),
        oracle=Decimal,
        setup="CREATE DOMAIN whole_cents AS numeric(12,2); CREATE DOMAIN cents AS whole_cents",
    ),
    "composite": Kind(
        "pair",
        pa.string(),
        ("(1, 'a \"b\", c')", "(NULL, '')", "(1, NULL)"),
        binary=False,
        setup="CREATE TYPE pair AS (a int, b text)",
    ),
    "int4_array": Kind(
        "int4[]",
        pa.list_(pa.field("element", pa.int32())),
        ("'{}'", "'{1,NULL,-3}'", "'{NULL}'"),
        word=UNNESTED,
        oracle=lambda w: [None if e is None else int(e) for e in _list(w)],
    ),
    "text_array": Kind(
        "text[]",
        LISTS,
        (
            "'{}'",
            "ARRAY['']",
            "ARRAY['NULL', NULL, 'null']",
            "ARRAY['a,b', '{c}', 'd\"e', E'f\\\\g', E'\\\\', E'\\\\\\\\', E'\\\\\"', ' ', 'h i', E'\\n']",
            "ARRAY['Zoë 🐘']",
        ),
        word=UNNESTED,
        oracle=_list,
    ),
    "bytea_array": Kind(
        "bytea[]",
        pa.list_(pa.field("element", pa.binary())),
        ("ARRAY['\\x00ff'::bytea, ''::bytea, NULL]",),
        word=UNNESTED,
        oracle=lambda w: [None if e is None else bytes.fromhex(e[2:]) for e in _list(w)],
    ),
    "numeric_array": Kind(
        "numeric(6,2)[]",
        pa.list_(pa.field("element", pa.decimal128(6, 2))),
        ("'{1.5,-0.01,NULL}'",),
        word=UNNESTED,
        oracle=lambda w: [None if e is None else Decimal(e) for e in _list(w)],
    ),
    "date_array": Kind(
        "date[]",
        pa.list_(pa.field("element", pa.date32())),
        ("'{2024-02-29,NULL,1970-01-02}'",),
        word=UNNESTED,
        oracle=lambda w: [None if e is None else dt.date.fromisoformat(e) for e in _list(w)],
    ),
    "box_array": Kind(
        "box[]",
        LISTS,
        ("ARRAY[box '(1,2),(3,4)', NULL, box '(5,6),(7,8)']",),
        word=UNNESTED,
        oracle=_list,
        binary=False,
    ),
    "delimited_array": Kind(
        "colons[]",
        LISTS,
        ("ARRAY['ab', NULL, 'c,d:e']::colons[]",),
        word=UNNESTED,
        oracle=_list,
        binary=False,
        setup="CREATE TYPE colons; "
        "CREATE FUNCTION colons_in(cstring) RETURNS colons IMMUTABLE STRICT LANGUAGE internal AS 'textin'; "
        "CREATE FUNCTION colons_out(colons) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal AS 'textout'; "
        "CREATE TYPE colons (INPUT = colons_in, OUTPUT = colons_out, LIKE = text, DELIMITER = ':')",
    ),
    "enum_array": Kind(
        "colour[]",
        LISTS,
        ("ARRAY['red', 'a \"b\"']::colour[]",),
        word=UNNESTED,
        oracle=_list,
        setup="CREATE TYPE colour AS ENUM ('red', 'a \"b\"')",
    ),
    "domain_array": Kind(
        "code[]",
        LISTS,
        ("'{ab,NULL}'",),
        word=UNNESTED,
        oracle=_list,
        setup="CREATE DOMAIN code AS varchar(3)",
    ),
    "composite_array": Kind(
        "twin[]",
        LISTS,
        ("ARRAY[(1, 'a \"b\", c')::twin, NULL, (NULL, '')::twin]",),
        word=SUBSCRIPTED,
        oracle=_list,
        binary=False,
        setup="CREATE TYPE twin AS (a int, b text)",
    ),
    "hstore": Kind(
        "hstore",
        pa.string(),
        ("""'"" => NULL, a => "q\\"uote", b => ""'""", "''"),
        binary=False,
        extension="hstore",
    ),
    "ltree": Kind("ltree", pa.string(), ("'Top.Science'", "''"), binary=False, extension="ltree"),
    "citext": Kind("citext", pa.string(), ("'MiXed'", "''"), binary=False, extension="citext"),
    "cube": Kind("cube", pa.string(), ("'(1,2),(3,4.5)'",), binary=False, extension="cube"),
    "isbn": Kind("isbn", pa.string(), ("'978-0-393-04002-9'",), binary=False, extension="isn"),
    "vector": Kind("vector", pa.string(), ("'[1,2.5]'",), binary=False, extension="vector"),
    "geometry": Kind("geometry", pa.string(), ("'SRID=4326;POINT Z (1 2 3)'",), binary=False, extension="postgis"),
}


def plain(array: pa.Array) -> list[Any]:
    """Cells as Python values that keep every bit: floats as bytes, timestamps as numbers (years beyond Python's)."""
    kind = array.type
    if pa.types.is_floating(kind):
        width = "<f" if kind == pa.float32() else "<d"
        return [None if v is None else struct.pack(width, v) for v in array.to_pylist()]
    if pa.types.is_date32(kind):
        return list(array.view(pa.int32()).to_pylist())
    if pa.types.is_timestamp(kind):
        return list(array.view(pa.int64()).to_pylist())
    return list(array.to_pylist())


def _columns(lab: Lab, *, binary: bool, publication: str) -> dict[str, pa.RecordBatch]:
    found: dict[str, pa.RecordBatch] = {}
    for event in lab.streamed(binary=binary, publication=publication):
        if isinstance(event, Committed):
            assert isinstance(event.run, Run)
            found |= {b.table.id.name: b.rows for b in event.run.batches}
    return found


def _has_xml(lab: Lab) -> bool:
    """Whether this server was built with the library that xml needs; without it, it has no such values."""
    try:
        lab.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True


def test_backfill_text_stream_binary_stream_and_server_agree_on_every_type(lab: Lab) -> None:
    """A value that differs by path would change in the warehouse without any change at the source.

    T02, T03, T05, T06, T07, T08, T09, T11, T15, T17, T19, T20, T22, T24, T25, T27, T28, T30, T31, T33, T36, T37,
    T38, T40, T42.
    """
    kinds = {name: kind for name, kind in KINDS.items() if lab.version >= kind.since}
    if not _has_xml(lab):
        del kinds["xml"]
    extensions = {row[0] for row in lab.execute("SELECT name FROM pg_available_extensions")}
    kinds = {name: kind for name, kind in kinds.items() if kind.extension in {"", *extensions}}
    for name, kind in kinds.items():
        if kind.extension:
            lab.execute(f"CREATE EXTENSION {kind.extension} SCHEMA public")
        if kind.setup:
            lab.execute(kind.setup)
        lab.execute(f"CREATE TABLE t_{name} (id int PRIMARY KEY, v {kind.type_text})")
    binary = ", ".join(f"t_{name}" for name, kind in kinds.items() if kind.binary)
    lab.execute(f"CREATE PUBLICATION binaries FOR TABLE {binary}")
    lab.slot()
    for name, kind in kinds.items():
        values = ", ".join(f"({i}, {v})" for i, v in enumerate((*kind.values, "NULL")))
        lab.execute(f"INSERT INTO t_{name} VALUES {values}")
    as_text = _columns(lab, binary=False, publication="everything")
    as_binary = _columns(lab, binary=True, publication="binaries")

    wrong = []
    for name, kind in kinds.items():
        words = [
            r[0]
            for r in lab.execute(
                f"SELECT CASE WHEN v IS DISTINCT FROM NULL THEN {kind.word} END FROM t_{name} ORDER BY id"
            )
        ]
        expected = [None if word is None else kind.oracle(word) for word in words]
        if pa.types.is_floating(kind.arrow):
            # The oracle's NaN is Python's; there is only one on our paths.
            assert words[0] == "NaN"
        described = lab.described(f"t_{name}")
        assert described.has_binary == kind.binary, name
        ways = {"copy": lab.copied(f"t_{name}", "ORDER BY id"), "text": as_text[f"t_{name}"]}
        if kind.binary:
            ways["binary"] = as_binary[f"t_{name}"]
        for way, rows in ways.items():
            cells = rows.column("v")
            cells.validate(full=True)
            if cells.type != kind.arrow or plain(cells) != expected:
                wrong.append((name, way, cells.type, plain(cells), expected))
    assert not wrong

"""One value, two ways out of the server: a chunk's SELECT and the row image of the binary log. Both must agree, for
every type, at the edges of its range; and both must equal the value that was inserted.
"""

from __future__ import annotations

import datetime as dt
import random
import struct
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from tests.servers.mysql import MySQLDatabase
from tests.support.mysql.values import WAYS, RowEvent, decoded, described, extras_of, row_events, selected

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types import charsets
from cdcflow.sources.mysql.types.charsets import UNKNOWN
from cdcflow.sources.mysql.types.columns import Policy

pytestmark = pytest.mark.mysql

LABELS = ",".join(f"'m{n}'" for n in range(64))
NUMBERS = {
    "tinyint": (-128, 127, 0),
    "tinyint unsigned": (0, 255),
    "smallint": (-32768, 32767),
    "smallint unsigned": (0, 65535),
    "mediumint": (-8388608, 8388607, -1),
    "mediumint unsigned": (0, 16777215),
    "int": (-2147483648, 2147483647),
    "int unsigned": (0, 4294967295),
    "int(8) zerofill": (5,),
    "bigint": (-(2**63), 2**63 - 1),
    "bigint unsigned": (0, 2**63, 2**64 - 1),
    "bool": (0, 1),
    "bit(1)": (0, 1),
    "bit(9)": (0, 257, 511),
    "bit(64)": (0, 2**64 - 1),
    "year": (0, 1901, 2155),
    "double": (0.1 + 0.2, -1.7976931348623157e308, 2.2250738585072014e-308, 1e15, 1e-7),
    "double(10,3)": (-1234567.891, 0.001),
}
"""Types, and values that are SQL and Python in the same letters."""

DECIMALS = {
    "decimal(10,2)": ("-12345678.91", "0.00"),
    "decimal(65,30)": ("-99999999999999999999999999999999999.999999999999999999999999999999", "0." + "0" * 29 + "1"),
    "decimal(38,0) unsigned": ("9" * 38,),
    "decimal(39,3)": ("-" + "9" * 36 + ".999",),
    "decimal(9,9)": ("-0.000000001", "0.999999999"),
    "decimal(7,3) zerofill": ("1.500",),
}

MOMENTS: dict[str, tuple[tuple[str, object], ...]] = {
    "date": (("1000-01-01", dt.date(1000, 1, 1)), ("9999-12-31", dt.date(9999, 12, 31))),
    "datetime": (("1000-01-01 00:00:00", dt.datetime(1000, 1, 1)),),
    "datetime(1)": (("9999-12-31 23:59:59.9", dt.datetime(9999, 12, 31, 23, 59, 59, 900_000)),),
    "datetime(4)": (("1969-12-31 23:59:59.9999", dt.datetime(1969, 12, 31, 23, 59, 59, 999_900)),),
    "datetime(6)": (("2000-02-29 12:34:56.789012", dt.datetime(2000, 2, 29, 12, 34, 56, 789_012)),),
    "timestamp": (("1970-01-01 00:00:01", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)),),
    "timestamp(2)": (("2000-01-01 00:00:00.01", dt.datetime(2000, 1, 1, 0, 0, 0, 10_000, dt.UTC)),),
    "timestamp(6)": (("2038-01-19 03:14:07.999999", dt.datetime(2038, 1, 19, 3, 14, 7, 999_999, dt.UTC)),),
}

TIMES = {
    "time": ("-838:59:59", "838:59:59", "00:00:00"),
    "time(1)": ("-00:00:00.1", "100:00:00.9"),
    "time(2)": ("-00:00:00.10", "-838:59:58.99"),
    "time(3)": ("-01:02:03.001",),
    "time(6)": ("838:59:58.999999", "-00:00:00.000001", "-838:59:58.999999"),
}

TEXTS = {
    "char(10)": ("abc", "", "日本"),
    "char(255)": ("ä" * 255,),
    "varchar(20)": ("abc  ", "", "😀"),
    "varchar(300)": ("€" * 300, "x" * 255, "x" * 256),
    "tinytext": ("tiny",),
    "text": ("x" * 300,),
    "mediumtext": ("y" * 70_000,),
    "longtext": ("z" * 300,),
    "varchar(20) character set utf8mb3": ("日本",),
    "varchar(20) character set latin1": ("äöü€",),
    "char(200) character set latin1": ("ß" * 200,),
    "varchar(20) character set ucs2": ("aä日",),
    "text character set utf16": ("a😀",),
    "char(5) character set utf32": ("a😀b",),
    "varchar(20) character set sjis": ("日本ｶﾅ",),
    "varchar(20) character set cp932": ("①㈱",),
    "varchar(20) character set eucjpms": ("①～",),
    "varchar(20) character set gbk": ("中文",),
    "varchar(20) character set big5": ("中文",),
    "varchar(20) character set euckr": ("한국똠",),
    "varchar(20) character set koi8r": ("привет",),
    "varchar(20) character set swe7": ("ÅÄÖ",),
    "varchar(20) character set geostd8": ("ქართ",),
    "enum('a','b','ü','x,y')": ("b", "ü", "x,y"),
    "enum('ü','é') character set latin1": ("é",),
    "set('a','b','ü')": ("", "a,ü"),
    "enum('a','ü') character set binary": ("ü",),
    "set('a','a ','ü') character set binary": ("", "a,a ,ü"),
    f"set({LABELS})": ("m0,m63", ",".join(f"m{n}" for n in range(64))),
}

BYTES = {
    "binary(10)": (b"\1\2", b"", b"\0" * 10),
    "binary(255)": (b"\0",),
    "varbinary(20)": (b"\1\0", b""),
    "varbinary(300)": (b"\xff" * 300,),
    "tinyblob": (b"\0",),
    "blob": (b"\0" * 1000,),
    "mediumblob": (b"\xfe" * 70_000,),
    "longblob": (b"", b"x"),
}

DOCUMENTS = (
    "[]",
    "null",
    "-0.0",
    '{"b": 1, "aa": [1, 2.5, "x", null, true, {"k": {}}], "": -1, "big": 18446744073709551615, "e": 1e-7}',
    '["\\"", "\\\\", "/", "\\n", "\\u0001", "😀"]',
    "[" + ", ".join(str(n) for n in range(3000)) + "]",
    "[" + ", ".join(f'"{"k" * 50}{n}"' for n in range(1500)) + "]",
)


class Lab:
    """A table with one column of each of these types, and the two ways out of it."""

    def __init__(self, database: MySQLDatabase, types: list[str]) -> None:
        self.database = database
        self.table = TableId(database.name, "t")
        self.names = [f"c{n}" for n in range(len(types))]
        self.connection = database.connect(autocommit=True)
        self.execute("SET time_zone = '+00:00', sql_mode = 'NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES'")
        columns = ", ".join(f"{name} {kind} NULL" for name, kind in zip(self.names, types, strict=True))
        self.execute(f"CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, {columns}) CHARACTER SET utf8mb4")

    def execute(self, statement: str, values: Any = None) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)

    def insert(self, column: str, value: object, expression: str = "%s") -> None:
        self.execute(f"INSERT INTO t ({column}) VALUES ({expression})", (value,))

    def events(self) -> tuple[list[RowEvent], DescribedTable]:
        return self.described(Policy())

    def described(self, policy: Policy) -> tuple[list[RowEvent], DescribedTable]:
        with self.connection.cursor() as cursor:
            cursor.execute("FLUSH BINARY LOGS")
        files = sorted(self.database.server.data.glob("binlog.0*"))
        found = row_events([Path(f) for f in files], self.table)
        return found, described(found[-1].map, policy, extras_of(self.connection, self.table))

    def both(self, policy: Policy | None = None) -> pa.RecordBatch:
        """The rows, which must be the same by SELECT and from the log, and by every decoder."""
        events, shape = self.described(policy or Policy())
        chunks = []
        for images, results in WAYS.values():
            data, extents = selected(self.connection, shape, "ORDER BY id")
            read = results(shape, data, extents)
            logged = pa.concat_batches(decoded(events, shape, images)).select(read.schema.names)
            for name in read.schema.names:
                assert logged.column(name).equals(read.column(name)), f"{name}: {shape.table.row_schema.field(name)}"
            chunks.append(read)
        assert all(chunk.equals(chunks[0]) for chunk in chunks)
        return chunks[0]

    def close(self) -> None:
        self.connection.close()


def of_one(lab: Lab, name: str, rows: pa.RecordBatch) -> list[Any]:
    """What is not NULL in a column, in the order in which it was inserted."""
    return [v for v in rows.column(name).to_pylist() if v is not None]


@pytest.mark.spread(1)
def test_numbers(mysql_database: MySQLDatabase) -> None:
    """N05, N22, N24: every number type at both ends."""
    lab = Lab(mysql_database, list(NUMBERS))
    for name, values in zip(lab.names, NUMBERS.values(), strict=True):
        for value in values:
            lab.insert(name, value)
    rows = lab.both()
    for name, values in zip(lab.names, NUMBERS.values(), strict=True):
        assert of_one(lab, name, rows) == list(values), name
    lab.close()


def test_a_year_of_two_digits_is_the_year_that_is_stored(mysql_database: MySQLDatabase) -> None:
    """MariaDB shows 01 for 2001, and for 1901; a row image has the whole year. MySQL has no such type any longer."""
    if mysql_database.server.flavor == "mysql":
        with pytest.raises(pymysql.Error, match="YEAR"):
            Lab(mysql_database, ["year(2)"])
        return
    lab = Lab(mysql_database, ["year(2)"])
    for value in (1901, 2001, "69", "70", 0, 1900, 2155):
        lab.insert("c0", value)
    rows = lab.both()
    assert of_one(lab, "c0", rows) == [1901, 2001, 2069, 1970, 2000, 0, 2155]
    lab.close()


def test_floats_keep_their_bits(mysql_database: MySQLDatabase) -> None:
    """N21: a SELECT of a FLOAT prints six digits, and the log has all 32 bits."""
    lab = Lab(mysql_database, ["float", "float(7,2)", "double"])
    chance = random.Random(1)
    singles = [struct.unpack("<f", struct.pack("<f", chance.uniform(-1, 1) * 10.0**n))[0] for n in range(-37, 38)]
    doubles = [chance.uniform(-1, 1) * 10.0**n for n in range(-300, 300, 7)]
    for value in [1.100000023841858, 3.4028234663852886e38, *singles]:
        lab.insert("c0", repr(value), "%s + 0e0")
    lab.insert("c1", "-12345.67")
    for value in doubles:
        lab.insert("c2", repr(value), "%s + 0e0")
    rows = lab.both()
    assert of_one(lab, "c0", rows) == [1.100000023841858, 3.4028234663852886e38, *singles]
    assert of_one(lab, "c1", rows) == [struct.unpack("<f", struct.pack("<f", -12345.67))[0]]
    assert of_one(lab, "c2", rows) == doubles
    lab.close()


def test_decimals(mysql_database: MySQLDatabase) -> None:
    """To 65 digits, exactly."""
    lab = Lab(mysql_database, list(DECIMALS))
    chance = random.Random(2)
    given = {}
    for name, (kind, values) in zip(lab.names, DECIMALS.items(), strict=True):
        given[name] = list(values)
        if kind == "decimal(65,30)":
            given[name] += [
                f"{chance.choice(('', '-'))}{chance.randrange(10**35)}.{chance.randrange(10**30):030}"
                for _ in range(20)
            ]
        for value in given[name]:
            lab.insert(name, value)
    rows = lab.both()
    for name in lab.names:
        assert of_one(lab, name, rows) == [Decimal(v) for v in given[name]], name
    lab.close()


def test_dates_and_timestamps_are_equal_on_both_paths(mysql_database: MySQLDatabase) -> None:
    """N06: microseconds on both paths, and a TIMESTAMP is a point in time in UTC."""
    lab = Lab(mysql_database, list(MOMENTS))
    for name, pairs in zip(lab.names, MOMENTS.values(), strict=True):
        for text, _ in pairs:
            lab.insert(name, text)
    rows = lab.both()
    for name, pairs in zip(lab.names, MOMENTS.values(), strict=True):
        assert of_one(lab, name, rows) == [value for _, value in pairs], name
    lab.close()


def test_times(mysql_database: MySQLDatabase) -> None:
    """N04: to 838 hours on both sides, with fractions."""
    lab = Lab(mysql_database, list(TIMES))
    for name, values in zip(lab.names, TIMES.values(), strict=True):
        for value in values:
            lab.insert(name, value)
    rows = lab.both()
    for name, values in zip(lab.names, TIMES.values(), strict=True):
        found = [v for v in rows.column(name).cast(pa.int64()).to_pylist() if v is not None]
        assert found == [_microseconds(v) for v in values], name
    lab.close()


def _microseconds(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    hour, minute, second = text.lstrip("-").split(":")
    return sign * ((int(hour) * 60 + int(minute)) * 60 * 10**6 + int(Decimal(second) * 10**6))


def test_dates_in_no_calendar(mysql_database: MySQLDatabase) -> None:
    """N02: zero and partly-zero dates are handled by policy, on both paths the same."""
    lab = Lab(mysql_database, ["date", "datetime(3)", "timestamp(1)"])
    values = ("0000-00-00", "2000-00-00", "2000-01-00", "2001-02-31", "2001-02-28")
    for value in values:
        lab.execute("INSERT INTO t (c0, c1) VALUES (%s, %s)", (value, f"{value} 01:02:03.004"))
    lab.insert("c2", "0000-00-00 00:00:00")
    rows = lab.both(Policy(zero_dates="null"))
    assert of_one(lab, "c0", rows) == [dt.date(2001, 2, 28)]
    assert of_one(lab, "c1", rows) == [dt.datetime(2001, 2, 28, 1, 2, 3, 4000)]
    assert of_one(lab, "c2", rows) == []
    rows = lab.both(Policy(zero_dates="text"))
    assert of_one(lab, "c0", rows) == list(values)
    assert of_one(lab, "c1", rows) == [f"{value} 01:02:03.004" for value in values]
    assert of_one(lab, "c2", rows) == ["0000-00-00 00:00:00.0"]
    with pytest.raises(ConfigurationError, match="zero_dates"):
        lab.both()
    lab.close()


def test_text(mysql_database: MySQLDatabase) -> None:
    """N10, N17: every kind of text, in many character sets."""
    lab = Lab(mysql_database, list(TEXTS))
    for name, values in zip(lab.names, TEXTS.values(), strict=True):
        for value in values:
            lab.insert(name, value)
    rows = lab.both()
    for name, values in zip(lab.names, TEXTS.values(), strict=True):
        assert of_one(lab, name, rows) == list(values), name
    lab.close()


def test_value_that_is_no_label_is_the_empty_string(mysql_database: MySQLDatabase) -> None:
    """N10: without strict mode the server stores number 0 for it; NULL is something else."""
    lab = Lab(mysql_database, ["enum('a','b')", "set('a')"])
    lab.insert("c0", "c")
    lab.insert("c1", "")
    rows = lab.both()
    assert rows.column("c0").to_pylist() == ["", None]
    assert rows.column("c1").to_pylist() == [None, ""]
    lab.close()


def test_bytes(mysql_database: MySQLDatabase) -> None:
    """N11: BINARY is padded on both paths."""
    lab = Lab(mysql_database, list(BYTES))
    for name, values in zip(lab.names, BYTES.values(), strict=True):
        for value in values:
            lab.insert(name, value.hex(), "unhex(%s)")
    rows = lab.both()
    for name, (kind, values) in zip(lab.names, BYTES.items(), strict=True):
        size = int(kind.partition("(")[2].rstrip(")")) if kind.startswith("binary") else 0
        assert of_one(lab, name, rows) == [v.ljust(size, b"\0") for v in values], name
    lab.close()


def test_bytes_that_are_no_text(mysql_database: MySQLDatabase) -> None:
    """N15: what the server lets in, both paths see, and neither drops."""
    lab = Lab(mysql_database, ["varchar(20) character set cp1251"])
    lab.insert("c0", "6198", "CONVERT(unhex(%s) USING cp1251)")
    events, _ = lab.events()
    if b"\x61\x98" in events[-1].rows:
        with pytest.raises(ConfigurationError, match="bad_text"):
            lab.both()
        assert of_one(lab, "c0", lab.both(Policy(bad_text="replace"))) == ["a�"]
    else:
        assert len(of_one(lab, "c0", lab.both())) == 1
    lab.close()


def test_documents(mysql_database: MySQLDatabase) -> None:
    """MySQL's log has JSON in its own binary form, MariaDB's as text; both must print as SELECT does."""
    lab = Lab(mysql_database, ["json"])
    for document in DOCUMENTS:
        lab.insert("c0", document)
    if mysql_database.server.flavor == "mysql":
        lab.execute(
            "INSERT INTO t (c0) VALUES (JSON_ARRAY(CAST('2020-01-02' AS date), CAST('-12:13:14.5' AS time(3)), "
            "CAST('2020-01-02 03:04:05.12' AS datetime(2)), 1.50, -0.05, REPEAT(x'01', 100), "
            "ST_GeomFromText('POINT(1 2)')))"
        )
    rows = of_one(lab, "c0", lab.both())
    assert len(rows) == len(DOCUMENTS) + (mysql_database.server.flavor == "mysql")
    assert rows[0] == "[]"
    lab.close()


def test_geometry(mysql_database: MySQLDatabase) -> None:
    """As EWKB: WKB with the SRID, where there is one."""
    lab = Lab(mysql_database, ["geometry", "point"])
    lab.insert("c0", "LINESTRING(0 0, 1 1.5)", "ST_GeomFromText(%s, 0)")
    lab.insert("c1", "POINT(1 2)", "ST_GeomFromText(%s, 4326)")
    rows = lab.both()
    assert of_one(lab, "c0", rows) == [struct.pack("<BII4d", 1, 2, 2, 0, 0, 1, 1.5)]
    (point,) = of_one(lab, "c1", rows)
    assert struct.unpack("<BII", point[:9]) == (1, 0x20000001, 4326)
    assert sorted(struct.unpack("<dd", point[9:])) == [1.0, 2.0]
    lab.close()


def test_types_of_one_server_alone(mysql_database: MySQLDatabase) -> None:
    """N26, M62 on MariaDB, vectors on MySQL."""
    chance = random.Random(3)
    if mysql_database.server.flavor == "mysql":
        lab = Lab(mysql_database, ["vector(3)", "varchar(20) character set gb18030"])
        lab.insert("c0", "[1,2.5,-3]", "STRING_TO_VECTOR(%s)")
        lab.insert("c1", "中文😀")
        rows = lab.both()
        assert of_one(lab, "c0", rows) == [[1.0, 2.5, -3.0]]
        assert of_one(lab, "c1", rows) == ["中文😀"]
    else:
        lab = Lab(
            mysql_database,
            ["uuid", "inet4", "inet6", "text COMPRESSED", "varchar(200) COMPRESSED CHARACTER SET latin1"],
        )
        uuids = [_uuid(chance, version) for version in range(1, 9) for _ in range(20)] + [str(uuid.UUID(int=0))]
        sixes = [chance.randbytes(16) for _ in range(20)] + [bytes(16 - n) + b"\x0a" * n for n in range(17)]
        sixes += [bytes(10) + b"\xff\xff" + chance.randbytes(4), b"\1" + bytes(14) + b"\1", b"\0\1" * 4 + bytes(8)]
        for value in uuids:
            lab.insert("c0", value)
        for value in ("10.0.0.1", "0.0.0.0", "255.0.0.0"):  # noqa: S104  values, not addresses to listen on
            lab.insert("c1", value)
        for raw in sixes:
            lab.insert("c2", raw.hex(), "INET6_NTOA(unhex(%s))")
        for value in ("zä" * 1000, "", "short"):
            lab.insert("c3", value)
            lab.insert("c4", value[:200])
        rows = lab.both()
        stored = of_one(lab, "c0", rows)  # the server refuses a few of version 8
        assert [u for u in uuids if u in stored] == stored
        assert len(stored) > 150
        assert of_one(lab, "c3", rows) == ["zä" * 1000, "", "short"]
    lab.close()


def _uuid(chance: random.Random, version: int) -> str:
    raw = bytearray(chance.randbytes(16))
    raw[6] = raw[6] & 0x0F | version << 4
    raw[8] = raw[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(raw)))


def test_single_byte_sets_are_the_server_s(mysql_database: MySQLDatabase) -> None:
    """Every byte of every such set, asked of the server itself."""
    with mysql_database.session() as connection, connection.cursor() as cursor:
        for charset in sorted(charsets._SINGLE):
            bytes_of = ", ".join(
                f"CONVERT(CONVERT(unhex('{byte:02x}') USING {charset}) USING utf32)" for byte in range(256)
            )
            cursor.execute(
                "SELECT " + bytes_of.replace("CONVERT(CONVERT", "hex(CONVERT(CONVERT").replace("utf32)", "utf32))")
            )
            said = [chr(int(text, 16)) if text else "?" for text in cursor.fetchone()]
            for byte, letter in enumerate(said):
                ours = charsets._characters(charset)[byte]
                known = letter != "�" and (letter != "?" or byte == 0x3F)
                assert (ours == letter) if known else ours == UNKNOWN, f"{charset} {byte:02x}"

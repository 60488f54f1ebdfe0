"""Columns of all types: their text, their Arrow type, and their values on both paths, with both decoders."""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

import pyarrow as pa
import pytest
from tests.support.mysql.values import WAYS, bitmap, column, image, joined, result_row, table

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.mysql.rows import RowKind
from cdcflow.sources.mysql.tables import column_numbers, describe
from cdcflow.sources.mysql.types.columns import Policy, ServerColumn, TypeCode, resolve_type
from cdcflow.sources.mysql.types.numbers import bit_metadata, decimal_metadata
from cdcflow.sources.mysql.types.registry import select_expression

Value = tuple[bytes, bytes]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param]


def both(way: Any, of: ServerColumn, cells: list[Value | None]) -> pa.Array:
    """The column that these values become, each as a row image has it and as a SELECT returns it; both are equal."""
    shape = table(column("id", TypeCode.TINY), of)
    data, extents = joined([b"".join(image(shape, [b"\1", None if c is None else c[0]]) for c in cells)])
    found = way[0](shape, data, extents, RowKind.INSERT, b"\3", bitmap([True, True])).rows.column(of.name)
    data, extents = joined([result_row([b"1", None if c is None else c[1]]) for c in cells])
    assert found.equals(way[1](shape, data, extents).column(of.name))
    found.validate(full=True)
    assert found.type == shape.table.columns[1].type.arrow
    return found


INTEGERS = [
    (TypeCode.TINY, 1, False, pa.int8()),
    (TypeCode.TINY, 1, True, pa.uint8()),
    (TypeCode.SHORT, 2, False, pa.int16()),
    (TypeCode.SHORT, 2, True, pa.uint16()),
    (TypeCode.INT24, 3, False, pa.int32()),
    (TypeCode.INT24, 3, True, pa.uint32()),
    (TypeCode.LONG, 4, False, pa.int32()),
    (TypeCode.LONG, 4, True, pa.uint32()),
    (TypeCode.LONGLONG, 8, False, pa.int64()),
    (TypeCode.LONGLONG, 8, True, pa.uint64()),
]


@pytest.mark.parametrize(("code", "size", "unsigned", "arrow"), INTEGERS)
def test_integers_reach_both_of_their_ends(
    way: Any, code: TypeCode, size: int, unsigned: bool, arrow: pa.DataType
) -> None:
    """N24: a TINYINT(1) is a number, too, and BIGINT UNSIGNED goes beyond 2^63."""
    bits = 8 * size
    ends = [0, 2**bits - 1, 1] if unsigned else [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, 0]
    cells: list[Value | None] = [((n & (2**bits - 1)).to_bytes(size, "little"), str(n).encode()) for n in ends]
    found = both(way, column("n", code, unsigned=unsigned), [*cells, None])
    assert found.type == arrow
    assert found.to_pylist() == [*ends, None]


@pytest.mark.parametrize(("code", "size", "unsigned", "arrow"), INTEGERS)
def test_number_beyond_its_type_is_refused(
    way: Any, code: TypeCode, size: int, unsigned: bool, arrow: pa.DataType
) -> None:
    """A value that was cut to fit would be another value. MEDIUMINT is kept in four bytes."""
    del arrow
    shape = table(column("id", TypeCode.TINY), column("n", code, unsigned=unsigned))
    beyond = 2 ** (32 if size == 3 else 8 * size) if unsigned else 2 ** (31 if size == 3 else 8 * size - 1)
    for text in (str(beyond), str(-beyond - 1), "1.5", "", "-", "+1", "1e3"):
        data, extents = joined([result_row([b"1", text.encode()])])
        with pytest.raises(SourceUnavailable, match=r"shop\.orders\.n"):
            way[1](shape, data, extents)


def test_zeros_in_front_of_an_integer_mean_nothing(way: Any) -> None:
    """ZEROFILL prints them."""
    assert both(way, column("n", TypeCode.LONG, unsigned=True), [(b"\5\0\0\0", b"00000005")]).to_pylist() == [5]


def test_floats_keep_their_bits(way: Any) -> None:
    """N21, N22: a FLOAT becomes the double that it equals, and the sign of zero stays."""
    values = [1.100000023841858, -0.0, 3.4028234663852886e38, 1.1754943508222875e-38, 1e-45]
    cells: list[Value | None] = [(struct.pack("<f", v), repr(v).encode()) for v in values]
    found = both(way, column("f", TypeCode.FLOAT, 4), [*cells, None])
    assert found.type == pa.float32()
    assert found.to_pylist()[0] == struct.unpack("<f", struct.pack("<f", 1.1))[0]
    assert math.copysign(1, found.to_pylist()[1]) == -1
    doubles = [0.1 + 0.2, -0.0, 1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 1e15]
    cells = [(struct.pack("<d", v), repr(v).encode()) for v in doubles]
    assert both(way, column("f", TypeCode.DOUBLE, 8), cells).to_pylist() == doubles
    assert select_expression(column("f", TypeCode.FLOAT, 4)) == "`f` - 0e0"


@pytest.mark.parametrize("text", [b"", b"0x10", b"1,5", b"1" * 70 + b"x"])
def test_text_that_is_no_double_is_refused(way: Any, text: bytes) -> None:
    """The servers have no such doubles."""
    shape = table(column("id", TypeCode.TINY), column("f", TypeCode.DOUBLE, 8))
    data, extents = joined([result_row([b"1", text])])
    with pytest.raises(SourceUnavailable, match=r"shop\.orders\.f"):
        way[1](shape, data, extents)


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 33, 64])
def test_bits_are_a_number(way: Any, bits: int) -> None:
    """BIT(64) needs all of an unsigned number."""
    size = (bits + 7) // 8
    values = [0, 1, 2**bits - 1]
    cells: list[Value | None] = [(v.to_bytes(size, "big"),) * 2 for v in values]
    of = column("b", TypeCode.BIT, bit_metadata(bits))
    assert both(way, of, [*cells, None]).to_pylist() == [*values, None]
    assert table(column("id", TypeCode.TINY), of).table.columns[1].type.source == f"bit({bits})"


def test_enum_is_its_label(way: Any) -> None:
    """0 is what the server stored for a value that was no label; it prints as nothing."""
    of = column("e", TypeCode.ENUM, 1, labels=("a", "ä", "x,y"), collation=45)
    cells: list[Value | None] = [(b"\1", b"a"), (b"\2", "ä".encode()), (b"\3", b"x,y"), (b"\0", b""), None]
    assert both(way, of, cells).to_pylist() == ["a", "ä", "x,y", "", None]
    many = tuple(f"label {n}" for n in range(300))
    wide = column("e", TypeCode.ENUM, 2, labels=many, collation=45)
    assert both(way, wide, [(b"\x2c\x01", b"label 299")]).to_pylist() == ["label 299"]


def test_set_is_its_labels(way: Any) -> None:
    """N10: the empty set is not NULL; 64 labels use all bits."""
    labels = tuple(f"m{n}" for n in range(64))
    of = column("s", TypeCode.SET, 8, labels=labels, collation=45)
    cells: list[Value | None] = [
        (bytes(8), b""),
        (b"\1" + bytes(6) + b"\x80", b"m0,m63"),
        (b"\xff" * 8, ",".join(labels).encode()),
        None,
    ]
    assert both(way, of, cells).to_pylist() == ["", "m0,m63", ",".join(labels), None]
    few = column("s", TypeCode.SET, 1, labels=("a", "b", "c"), collation=45)
    assert both(way, few, [(b"\5", b"a,c"), (b"\7", b"a,b,c"), (b"\0", b"")]).to_pylist() == ["a,c", "a,b,c", ""]


@pytest.mark.parametrize(("code", "cell"), [(TypeCode.ENUM, b"\3"), (TypeCode.SET, b"\4")])
def test_number_without_a_label_is_refused(way: Any, code: TypeCode, cell: bytes) -> None:
    """A malformed number, or labels of another shape."""
    shape = table(column("id", TypeCode.TINY), column("e", code, 1, labels=("a", "b"), collation=45))
    data, extents = joined([image(shape, [b"\1", cell])])
    with pytest.raises(SourceUnavailable, match=r"shop\.orders\.e"):
        way[0](shape, data, extents, RowKind.INSERT, b"\3", b"\3")


def test_binary_gets_its_zeros_back(way: Any) -> None:
    """N11: the binary log omits them at the end of BINARY(n), not of VARBINARY."""
    cells: list[Value | None] = [(b"\1\2", b"\1\2\0\0"), (b"", bytes(4)), (b"\0\0\0\1", b"\0\0\0\1"), None]
    assert both(way, column("b", TypeCode.CHAR, 4, collation=63), cells).to_pylist() == [
        b"\1\2\0\0", bytes(4), b"\0\0\0\1", None,
    ]  # fmt: skip
    same: list[Value | None] = [(b"\1\0", b"\1\0"), (b"", b"")]
    assert both(way, column("b", TypeCode.VARCHAR, 4, collation=63), same).to_pylist() == [b"\1\0", b""]


def test_long_values_are_read_whole(way: Any) -> None:
    """Result rows encode a length in one, three, four or nine bytes."""
    of = column("b", TypeCode.BLOB, 4, collation=63)
    values = [bytes([n % 256]) * n for n in (0, 250, 251, 65_535, 65_536, 1 << 24)]
    assert both(way, of, [(v, v) for v in values]).to_pylist() == values


def test_geometry_is_well_known_binary_with_its_srid(way: Any) -> None:
    """EWKB: without a reference system it is plain WKB, as logs had it for all values up to 0.0."""
    point, line = struct.pack("<BIdd", 1, 1, 1.0, 2.0), struct.pack("<BII4d", 1, 2, 2, 0, 0, 1, 1)
    cells: list[Value | None] = [(srid.to_bytes(4, "little") + g,) * 2 for srid, g in ((4326, point), (0, line))]
    cells += [None, ((3857).to_bytes(4, "little") + line,) * 2]
    assert both(way, column("g", TypeCode.GEOMETRY, 4), cells).to_pylist() == [
        struct.pack("<BIIdd", 1, 0x20000001, 4326, 1.0, 2.0),
        line,
        None,
        struct.pack("<BIII4d", 1, 0x20000002, 3857, 2, 0, 0, 1, 1),
    ]
    assert both(way, column("g", TypeCode.GEOMETRY, 4), [None, (bytes(4) + point,) * 2]).to_pylist() == [None, point]


@pytest.mark.parametrize("raw", [b"\xe6\x10\0\0", b"\xe6\x10\0\0\1\1\0\0", b"\xe6\x10\0\0\0\0\0\0\1" + bytes(16)])
def test_bytes_that_are_not_a_geometry_stop_with_an_error_that_names_the_column(way: Any, raw: bytes) -> None:
    """Short, cut off inside its type, or of another byte order than the servers store."""
    with pytest.raises(SourceUnavailable, match="geometry"):
        both(way, column("g", TypeCode.GEOMETRY, 4), [(raw, raw)])


def test_vector_is_a_list_of_floats(way: Any) -> None:
    """In MySQL the binary log itself records the type; MariaDB logs a string of bytes, and only the catalog has its
    type."""
    raw = struct.pack("<3f", 1, 2.5, -3)
    cells: list[Value | None] = [None, (raw, raw), (b"", b""), None, (raw[:4], raw[:4])]
    for of in (
        column("v", TypeCode.VECTOR, 4),
        column("v", TypeCode.VARCHAR, 12, collation=63, extra="vector"),
    ):
        found = both(way, of, cells)
        assert found.to_pylist() == [None, [1.0, 2.5, -3.0], [], None, [1.0]]
        assert found.type.value_field.name == "element"  # what Spark calls it, too


def test_uuid_is_printed_in_its_usual_form(way: Any) -> None:
    """N26: the server stores the groups of older versions in reverse order; zeros at the end are omitted."""
    of = column("u", TypeCode.CHAR, 16, collation=63, extra="uuid")
    text = "6ccd780c-baba-1026-9564-5b8c656024db"
    turned = bytes.fromhex("5b8c656024db95641026baba6ccd780c")
    sorted_text = "018f3a5e-7b1c-7def-8123-456789abcdef"
    straight = bytes.fromhex(sorted_text.replace("-", ""))
    nothing = "00000000-0000-0000-0000-000000000000"
    cells: list[Value | None] = [
        (turned, text.encode()), (straight, sorted_text.encode()), (b"", nothing.encode()), None,
    ]  # fmt: skip
    assert both(way, of, cells).to_pylist() == [text, sorted_text, nothing, None]


def test_addresses_are_printed_as_the_server_does(way: Any) -> None:
    """N26: the longest run of zeros is omitted, and an embedded IPv4 address is printed in dotted form."""
    four = column("a", TypeCode.CHAR, 4, collation=63, extra="inet4")
    assert both(way, four, [(b"\x0a\0\0\1", b"10.0.0.1"), (b"\x0a", b"10.0.0.0"), None]).to_pylist() == [
        "10.0.0.1", "10.0.0.0", None,
    ]  # fmt: skip
    six = column("a", TypeCode.CHAR, 16, collation=63, extra="inet6")
    cells: list[Value | None] = [
        (bytes.fromhex("20010db8") + bytes(11) + b"\1", b"2001:db8::1"),
        (b"", b"::"),
        (bytes(10) + b"\xff\xff\x0a\0\0\1", b"::ffff:10.0.0.1"),
        (bytes(12) + b"\x0a\0\0\1", b"::10.0.0.1"),
        (bytes(15) + b"\1", b"::1"),
        (bytes.fromhex("00010002000000000000000000030004"), b"1:2::3:4"),
        (bytes.fromhex("00010002000300040005000600070008"), b"1:2:3:4:5:6:7:8"),
    ]
    assert both(way, six, cells).to_pylist() == [cell[1].decode() for cell in cells if cell]


def test_compressed_columns_are_inflated(way: Any) -> None:
    """M62: stored unchanged where that is shorter, otherwise zlib, with and without its header."""
    text = "zä" * 200
    raw = text.encode()
    squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
    bare = squeeze.compress(raw) + squeeze.flush()
    stored = b"\x8a" + len(raw).to_bytes(2, "big") + bare
    wrapped = b"\x82" + len(raw).to_bytes(2, "big") + zlib.compress(raw)
    cells: list[Value | None] = [(stored, raw), (wrapped, raw), (b"\0short", b"short"), (b"", b""), None]
    expected = [text, text, "short", "", None]
    assert both(way, column("z", TypeCode.VARCHAR_COMPRESSED, 801, collation=45), cells).to_pylist() == expected
    assert both(way, column("z", TypeCode.BLOB_COMPRESSED, 2, collation=45), cells).to_pylist() == expected
    few: list[Value | None] = [(b"\x81\x09" + zlib.compress(b"123456789"), b"123456789")]
    assert both(way, column("z", TypeCode.VARCHAR_COMPRESSED, 40, collation=45), few).to_pylist() == ["123456789"]
    of = column("z", TypeCode.BLOB_COMPRESSED, 2, collation=63)
    assert both(way, of, cells).to_pylist() == [raw, raw, b"short", b"", None]


@pytest.mark.parametrize(
    "cell", [b"\x8a\0\5abc", b"\x8a\0\1" + zlib.compress(b"ab")[2:-4], b"\x12\0\1x", b"\x88", b"\x8f" + bytes(9)]
)
def test_garbled_compressed_value_is_refused(way: Any, cell: bytes) -> None:
    """O10: a value whose length differs from its stated length is rejected whole."""
    shape = table(column("id", TypeCode.TINY), column("z", TypeCode.BLOB_COMPRESSED, 2, collation=45))
    data, extents = joined([image(shape, [b"\1", cell])])
    with pytest.raises(SourceUnavailable, match=r"shop\.orders\.z"):
        way[0](shape, data, extents, RowKind.INSERT, b"\3", b"\3")


@pytest.mark.parametrize("row", [b"", b"\1", b"\x011", b"\x0111", b"\x011\xfb\xfb", b"\x011\xff", b"\x011\xfd\1\0"])
def test_result_row_of_another_length_is_refused(way: Any, row: bytes) -> None:
    """O10: a length that points anywhere but to the row's end is never followed."""
    shape = table(column("id", TypeCode.TINY), column("b", TypeCode.BLOB, 2, collation=63))
    data, extents = joined([result_row([b"1", b"x"]), row])
    with pytest.raises(SourceUnavailable):
        way[1](shape, data, extents)


def test_types_that_share_table_map_bytes_are_distinguished() -> None:
    """CHAR's length hides two of its bits in the type; ENUM and SET hide in CHAR."""
    assert resolve_type(254, b"\xfe\x50") == (254, 80)
    assert resolve_type(254, b"\xce\xfc") == (254, 0x3FC)
    assert resolve_type(254, b"\xf7\x02") == (TypeCode.ENUM, 2)
    assert resolve_type(254, b"\xf8\x08") == (TypeCode.SET, 8)
    assert resolve_type(246, b"\x0a\x02") == (246, decimal_metadata(10, 2))
    assert resolve_type(15, b"\xfc\x03") == (15, 1020)
    assert resolve_type(3, b"") == (3, 0)


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (column("c", TypeCode.LONG, unsigned=True), "int unsigned"),
        (column("c", TypeCode.DECIMAL, decimal_metadata(10, 2)), "decimal(10,2)"),
        (column("c", TypeCode.VARCHAR, 80, collation=45), "varchar(20)"),
        (column("c", TypeCode.VARCHAR, 80, collation=8), "varchar(80)"),
        (column("c", TypeCode.VARCHAR, 80, collation=63), "varbinary(80)"),
        (column("c", TypeCode.CHAR, 40, collation=45), "char(10)"),
        (column("c", TypeCode.CHAR, 40, collation=63), "binary(40)"),
        (column("c", TypeCode.BLOB, 1, collation=45), "tinytext"),
        (column("c", TypeCode.BLOB, 2, collation=63), "blob"),
        (column("c", TypeCode.BLOB, 4, collation=45), "longtext"),
        (column("c", TypeCode.ENUM, 1, labels=("it's", "b"), collation=45), "enum('it''s','b')"),
        (column("c", TypeCode.DATETIME, 6), "datetime(6)"),
        (column("c", TypeCode.TIME), "time"),
        (column("c", TypeCode.CHAR, 16, collation=63, extra="uuid"), "uuid"),
        (column("c", TypeCode.VARCHAR_COMPRESSED, 81, collation=8), "varchar(80)"),
    ],
)
def test_type_is_named_as_in_sql(of: ServerColumn, text: str) -> None:
    """The text is compared when shapes are, so the log's and the catalog's must be one."""
    assert table(column("id", TypeCode.TINY), of).table.columns[1].type.source == text


@pytest.mark.parametrize("code", [0, 7, 11, 12])
def test_formats_of_old_servers_are_refused_with_an_error_that_names_them(code: int) -> None:
    """N28: they are as long as other types, so guessing would give other values."""
    with pytest.raises(ConfigurationError, match=r"shop\.orders\.old(.|\n)*ALTER TABLE shop\.orders FORCE"):
        table(ServerColumn("id", 3, 0, False), ServerColumn("old", code, 0, True))


def test_unknown_type_is_refused_with_an_error_that_names_it() -> None:
    """A type of a newer server must not be taken for another."""
    with pytest.raises(ConfigurationError, match=r"shop\.orders\.new has the type number 243"):
        table(ServerColumn("id", 3, 0, False), ServerColumn("new", 243, 0, True))


def test_table_without_names_is_refused() -> None:
    """M72: with MINIMAL metadata the log does not contain the columns' names."""
    with pytest.raises(ConfigurationError, match="binlog_row_metadata"):
        table(ServerColumn("", 3, 0, False))


@pytest.mark.parametrize(
    ("of", "policy"),
    [
        (column("c", TypeCode.LONG), "null"),
        (column("c", TypeCode.DATE), "replace"),
        (column("c", TypeCode.VARCHAR, 80, collation=45), "null"),
        (column("c", TypeCode.DATETIME), "clamp"),
    ],
)
def test_policy_that_a_type_does_not_know_is_refused(of: ServerColumn, policy: str) -> None:
    """Users would believe that a setting without effect works."""
    with pytest.raises(ConfigurationError, match=r"shop\.orders\.c.*does not know"):
        table(column("id", TypeCode.LONG), of, policy=Policy(columns={"shop.orders.c": policy}))


@pytest.mark.parametrize(
    ("of", "known"),
    [
        (column("c", TypeCode.DATE), ("stop", "null", "text")),
        (column("c", TypeCode.DATETIME), ("stop", "null", "text")),
        (column("c", TypeCode.TIMESTAMP), ("stop", "null", "text")),
        (column("c", TypeCode.TIME), ()),
        (column("c", TypeCode.VARCHAR, 80, collation=45), ("stop", "replace")),
        (column("c", TypeCode.BLOB, 2, collation=45), ("stop", "replace")),
        (column("c", TypeCode.VARCHAR, 80, collation=63), ()),
        (column("c", TypeCode.ENUM, 1, labels=("a",), collation=45), ()),
        (column("c", TypeCode.LONG), ()),
    ],
)
def test_setting_for_one_column_overrides_the_one_for_all(of: ServerColumn, known: tuple[str, ...]) -> None:
    """By the column's full name; and it must be one that the column's type knows."""
    for own in ("stop", "null", "text", "replace", ""):
        for policy in (Policy(columns={"shop.orders.c": own}), Policy("null", "replace", {"shop.orders.c": own})):
            if own not in known:
                with pytest.raises(ConfigurationError, match=rf"shop\.orders\.c .*does not know '{own}'") as refused:
                    table(column("id", TypeCode.LONG), of, policy=policy)
                # The remedy in the error fixes it.
                remedy = refused.value.remedy or ""
                assert ("remove shop.orders.c from source.columns" in remedy) is (not known)
                after = {"shop.orders.c": "stop"} if known else {}
                assert ("{shop.orders.c: stop}" in remedy) is bool(known)
                table(column("id", TypeCode.LONG), of, policy=Policy(policy.zero_dates, policy.bad_text, after))
                continue
            where = table(column("id", TypeCode.LONG), of, policy=policy).codecs[1].where
            is_date = "null" in known
            assert where.zero_dates == (own if is_date else policy.zero_dates)
            assert where.bad_text == (policy.bad_text if is_date else own)
    others = Policy("text", "replace", {"shop.orders.id": "x", "c": "x", "orders.c": "x"})
    where = table(column("k", TypeCode.LONG), of, key=("k",), policy=others).codecs[1].where
    assert (where.zero_dates, where.bad_text) == ("text", "replace")


@pytest.mark.parametrize(
    ("key", "policy", "instead"),
    [
        (column("k", TypeCode.DATE), Policy(zero_dates="null"), "text"),
        (column("k", TypeCode.DATETIME), Policy(columns={"shop.orders.k": "null"}), "text"),
        (column("k", TypeCode.VARCHAR, 80, collation=45), Policy(bad_text="replace"), "stop"),
    ],
)
def test_policy_that_makes_keys_of_different_rows_equal_is_refused(
    key: ServerColumn, policy: Policy, instead: str
) -> None:
    """Two invalid dates would both be NULL, and the two rows one. The remedy in the error works."""
    with pytest.raises(ConfigurationError, match=r"shop\.orders\.k .*part of the table's key") as caught:
        table(key, key=("k",), policy=policy)
    assert str(caught.value.remedy).endswith(f"{{shop.orders.k: {instead}}}")
    remedied = Policy(policy.zero_dates, policy.bad_text, {"shop.orders.k": instead})
    assert table(key, key=("k",), policy=remedied)
    assert table(column("id", TypeCode.LONG), key, policy=policy)


def test_columns_are_numbered_by_their_names() -> None:
    """M34: positions shift when a column is added in the middle; a column's name does not."""
    first, second = column_numbers(["id", "state", "note"]), column_numbers(["id", "added", "state", "note"])
    assert [second[i] for i in (0, 2, 3)] == first
    assert len(set(second)) == 4
    # Two names with one checksum (found by trying).
    assert len(set(column_numbers(["plumless", "buckeroo"]))) == 2


def test_equal_descriptions_give_equal_tables() -> None:
    """The catalog and the log describe each table again with every check; only a change of shape makes a difference."""
    columns = [column("id", TypeCode.LONG, nullable=False), column("e", TypeCode.ENUM, 1, labels=("a",), collation=45)]
    made = [describe(TableId("shop", "t"), list(columns), ["id"], Identity.KEY, Policy()).table for _ in range(2)]
    assert made[0] == made[1]
    assert hash(made[0]) == hash(made[1])
    assert made[0].incarnation == 1
    assert [c.nullable for c in made[0].columns] == [False, True]

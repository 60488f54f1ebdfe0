"""Which Arrow type a column becomes, how its values are sent, and which settings change that."""

from __future__ import annotations

import datetime
import struct
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.config import Postgres
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.table import Column, Identity, TableId
from cdcflow.sources.engine.buffers import Cells, with_padding
from cdcflow.sources.postgres.types import AttributeInfo, Codec, DescribedTable, Policy, decode, describe_table
from cdcflow.sources.postgres.types.describe import quote_name

NUMERIC, INT4, BOX = 1700, 23, 603
TIMESTAMP, TIMESTAMPTZ = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])


def described(*attributes: AttributeInfo, policy: Policy | None = None) -> DescribedTable:
    return describe_table(TableId("public", "t"), 16384, attributes, Identity.KEY, policy or Policy())


def column(oid: int, modifier: int = -1, **about: Any) -> AttributeInfo:
    given = {"base_modifier": modifier, **about}
    return AttributeInfo("v", 3, oid, modifier, f"type {oid}", **given)


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | (scale & 0x7FF)) + 4


def codec_of(attribute: AttributeInfo, **policy: Any) -> Codec:
    (found,) = described(attribute, policy=Policy(**policy)).codecs
    return found


def arrow_of(attribute: AttributeInfo, **policy: Any) -> pa.DataType:
    found: pa.DataType = described(attribute, policy=Policy(**policy)).table.columns[0].type.arrow
    return found


def cells(*values: bytes) -> Cells:
    size = np.array([len(v) for v in values], np.int64)
    return Cells(with_padding(values), np.cumsum(size) - size, size)


def big(form: str, *values: Any) -> bytes:
    return struct.pack(f">{form}", *values)


NUMBER_12_5 = big("hhhhhh", 2, 0, 0, 1, 12, 5000)
SAME_IN_BOTH: dict[int, tuple[pa.DataType, bytes, bytes, Any]] = {
    16: (pa.bool_(), b"t", b"\1", True),
    17: (pa.binary(), b"\\x00ff", b"\0\xff", b"\0\xff"),
    19: (pa.string(), b"name", b"name", "name"),
    20: (pa.int64(), b"-5", big("q", -5), -5),
    21: (pa.int16(), b"-5", big("h", -5), -5),
    23: (pa.int32(), b"-5", big("i", -5), -5),
    25: (pa.string(), b"x", b"x", "x"),
    26: (pa.int64(), b"4000000000", big("I", 4_000_000_000), 4_000_000_000),
    114: (pa.string(), b"{}", b"{}", "{}"),
    700: (pa.float32(), b"0.5", big("f", 0.5), 0.5),
    701: (pa.float64(), b"0.1", big("d", 0.1), 0.1),
    790: (pa.decimal128(19, 2), b"1.50", big("q", 150), Decimal("1.50")),
    1042: (pa.string(), b"a  ", b"a  ", "a  "),
    1043: (pa.string(), b"a", b"a", "a"),
    1082: (pa.date32(), b"2000-01-02", big("i", 1), datetime.date(2000, 1, 2)),
    1083: (pa.string(), b"00:00:01", big("q", 1_000_000), "00:00:01"),
    1114: (TIMESTAMP, b"2000-01-01 00:00:01", big("q", 1_000_000), None),
    1184: (TIMESTAMPTZ, b"2000-01-01 00:00:01+00", big("q", 1_000_000), None),
    1186: (
        INTERVAL,
        b"2 mons 3 days 00:00:00.000001",
        big("qii", 1, 3, 2),
        {"months": 2, "days": 3, "microseconds": 1},
    ),
    1266: (pa.string(), b"00:00:01-01", big("qi", 1_000_000, 3600), "00:00:01-01"),
    1560: (pa.string(), b"101", big("i", 3) + b"\xa0", "101"),
    1562: (pa.string(), b"101", big("i", 3) + b"\xa0", "101"),
    2950: (pa.string(), b"00000000-0000-0000-0000-0000000000ff", b"\0" * 15 + b"\xff", None),
    3802: (pa.string(), b"{}", b"\1{}", "{}"),
}


@pytest.mark.parametrize("oid", SAME_IN_BOTH)
def test_a_value_is_the_same_as_text_and_in_binary(oid: int) -> None:
    """Chunks are binary and a stream may be text: one row must not have two values."""
    arrow, text, binary, value = SAME_IN_BOTH[oid]
    attribute = column(oid)
    codec = codec_of(attribute)
    as_text, as_binary = (decode(codec, cells(v), as_binary=b) for v, b in ((text, False), (binary, True)))
    assert arrow_of(attribute) == as_text.type == as_binary.type == arrow
    assert as_text.equals(as_binary)
    assert as_text.null_count == 0
    if value is not None:
        assert as_text.to_pylist() == [value]
    assert described(attribute).has_binary
    assert described(attribute).copy_expressions == ('"v"',)


@pytest.mark.parametrize("oid", [869, 650, 3614, 16999])
def test_what_is_not_known_is_the_server_s_text(oid: int) -> None:
    """And its text is what the type's own output function makes, not what a cast does."""
    found = described(column(oid))
    assert found.table.columns[0].type.arrow == pa.string()
    assert not found.has_binary
    assert found.codecs[0].binary is None
    expression = 'CASE WHEN "v" IS DISTINCT FROM NULL THEN pg_catalog.format(\'%s\', "v") END'
    assert found.copy_expressions == (expression,)
    with pytest.raises(InvariantViolated, match=r"column public\.t\.v \(type \d+\): values came in binary"):
        decode(found.codecs[0], cells(b"x"), as_binary=True)


def test_a_table_has_binary_only_where_all_its_columns_have() -> None:
    """The stream's format is one for all."""
    known, unknown = column(INT4), replace(column(869), name="w")
    assert described(known, replace(known, name="w")).has_binary
    assert not described(known, unknown).has_binary
    assert [c.binary is None for c in described(known, unknown).codecs] == [False, True]


def test_column_keeps_its_description_in_the_catalog() -> None:
    """Its number survives a rename; no other place records what rows from before it have."""
    key = AttributeInfo("id", 1, 20, -1, "bigint", not_null=True, in_key=True)
    late = AttributeInfo("v", 7, INT4, -1, "integer", missing="5")
    found = described(key, late).table
    assert found.columns == (
        Column("id", 1, found.columns[0].type, nullable=False),
        Column("v", 7, found.columns[1].type, nullable=True, missing="5"),
    )
    assert [c.type.source for c in found.columns] == ["bigint", "integer"]
    assert (found.key, found.incarnation, found.id, found.identity) == (
        ("id",),
        16384,
        TableId("public", "t"),
        Identity.KEY,
    )


def test_domain_is_decoded_as_its_base_type() -> None:
    """An enum is its label whatever its oid."""
    assert arrow_of(column(17000, base_oid=INT4)) == pa.int32()
    assert arrow_of(column(17000, numeric(5, 2), base_oid=NUMERIC)) == pa.decimal128(5, 2)
    label = described(column(17001, kind="e"))
    assert label.has_binary
    assert label.codecs[0].binary is not None
    assert decode(label.codecs[0], cells(b"red"), as_binary=True).to_pylist() == ["red"]


@pytest.mark.parametrize(
    ("precision", "scale", "arrow"),
    [
        (5, 2, pa.decimal128(5, 2)),
        (1, 0, pa.decimal128(1, 0)),
        (5, -2, pa.decimal128(7, 0)),
        (3, 5, pa.decimal128(5, 5)),
        (5, 5, pa.decimal128(5, 5)),
        (38, 10, pa.decimal128(38, 10)),
        (39, 10, pa.decimal256(39, 10)),
        (76, 0, pa.decimal256(76, 0)),
        (70, -6, pa.decimal256(76, 0)),
        (77, 0, pa.string()),
        (70, -7, pa.string()),
        (1000, -1000, pa.string()),
        (2, 76, pa.decimal256(76, 76)),
        (2, 77, pa.string()),
    ],
)
def test_a_numeric_is_a_decimal_that_holds_all_of_its_values(precision: int, scale: int, arrow: pa.DataType) -> None:
    """T02: nothing is rounded; what no decimal holds is its text."""
    attribute = column(NUMERIC, numeric(precision, scale))
    assert arrow_of(attribute) == arrow
    assert described(attribute).has_binary
    assert arrow_of(attribute, special_values="text") == pa.string()


def test_numeric_without_precision_is_text_or_the_type_in_the_settings() -> None:
    """Its values may have any number of digits; the setting states that they do not."""
    assert arrow_of(column(NUMERIC)) == pa.string()
    assert described(column(NUMERIC)).has_binary
    text = codec_of(column(NUMERIC))
    assert decode(text, cells(b"12.5"), as_binary=False).to_pylist() == ["12.5"]
    assert decode(text, cells(NUMBER_12_5), as_binary=True).to_pylist() == ["12.5"]
    policy = Policy(unconstrained_numeric="decimal(20, 4)")
    found = described(column(NUMERIC), policy=policy)
    assert found.table.columns[0].type.arrow == pa.decimal128(20, 4)
    assert not found.has_binary
    assert arrow_of(column(NUMERIC, numeric(5, 2)), unconstrained_numeric="decimal(20,4)") == pa.decimal128(5, 2)
    assert arrow_of(column(NUMERIC), unconstrained_numeric="decimal(77,4)") == pa.string()
    assert arrow_of(column(NUMERIC), columns={"public.t.v": "decimal(9,1)"}) == pa.decimal128(9, 1)


@pytest.mark.parametrize(
    ("element", "arrow"),
    [(INT4, pa.int32()), (1082, pa.date32()), (869, pa.string()), (17001, pa.string())],
)
def test_an_array_is_a_list_of_what_its_elements_become(element: int, arrow: pa.DataType) -> None:
    """In binary only where the elements can be."""
    attribute = column(1007, element_oid=element, element_kind="e" if element == 17001 else "b")
    assert arrow_of(attribute) == pa.list_(pa.field("element", arrow))
    assert described(attribute).has_binary == (element != 869)
    assert arrow_of(attribute, special_values="text") == pa.string()
    assert arrow_of(attribute, columns={"public.t.v": "text"}) == pa.string()


def test_elements_of_an_array_have_separate_modifiers() -> None:
    """numeric(5,2)[] is a list of such decimals, numeric[] one of texts unless the settings say otherwise."""
    fixed = column(1231, element_oid=NUMERIC, element_modifier=numeric(5, 2))
    free = column(1231, element_oid=NUMERIC)
    assert arrow_of(fixed) == pa.list_(pa.field("element", pa.decimal128(5, 2)))
    assert arrow_of(free) == pa.list_(pa.field("element", pa.string()))
    own = {"public.t.v": "decimal(9,1)"}
    assert arrow_of(free, columns=own) == pa.list_(pa.field("element", pa.decimal128(9, 1)))
    for other in (fixed, column(1007, element_oid=INT4)):
        with pytest.raises(ConfigurationError, match="does not know"):
            arrow_of(other, columns=own)


def test_elements_are_separated_by_their_type_s_delimiter() -> None:
    """Boxes contain commas, so semicolons separate them; two old types resemble arrays and are none."""
    boxes = codec_of(column(1020, element_oid=BOX, element_delimiter=";"))
    assert decode(boxes, cells(b"{(1,1),(0,0);(2,2),(0,0)}"), as_binary=False).to_pylist() == [
        ["(1,1),(0,0)", "(2,2),(0,0)"]
    ]
    numbers = codec_of(column(1007, element_oid=INT4))
    assert decode(numbers, cells(b"{1,2}"), as_binary=False).to_pylist() == [[1, 2]]
    for oid, element in ((22, 21), (30, 26)):
        assert arrow_of(column(oid, element_oid=element)) == pa.string()


def test_a_setting_for_one_column_is_for_that_one_only() -> None:
    """By its full name; and it must be one that the column's type knows."""
    attributes = column(1082), replace(column(1082), name="w")
    policy = Policy(special_values="null", columns={"public.t.v": "text", "public.t": "clamp", "v": "clamp"})
    found = described(*attributes, policy=policy)
    assert [c.type.arrow for c in found.table.columns] == [pa.string(), pa.date32()]
    assert [c.where.special for c in found.codecs] == ["text", "null"]
    assert [str(c.where) for c in found.codecs] == ["column public.t.v (type 1082)", "column public.t.w (type 1082)"]
    for own in ("decimal(9,1)", "nonsense", ""):
        with pytest.raises(ConfigurationError, match=r"column public\.t\.v is a type 23.*does not know") as refused:
            arrow_of(column(INT4), columns={"public.t.v": own})
        assert "one of" in (refused.value.remedy or "")
    with pytest.raises(ConfigurationError, match="does not know"):
        arrow_of(column(NUMERIC), columns={"public.t.v": "decimal(9)"})
    with pytest.raises(ConfigurationError, match="does not know"):
        arrow_of(column(NUMERIC, numeric(5, 2)), columns={"public.t.v": "decimal(9,1)"})
    assert arrow_of(column(INT4), columns={"public.t.v": "text"}) == pa.string()
    assert arrow_of(column(INT4), special_values="text") == pa.int32(), "it has no such values"
    assert codec_of(column(1082)).where.special == "stop"


def test_the_policy_is_that_of_the_settings() -> None:
    """Under the names that it has there."""
    settings = Postgres(
        kind="postgres",
        url="postgresql://u@h/d",
        special_values="clamp",
        unconstrained_numeric="decimal(9,1)",
        columns={"public.t.v": "text"},
    )
    assert Policy.of(settings) == Policy("clamp", "decimal(9,1)", {"public.t.v": "text"})


def test_a_column_s_name_stays_a_name() -> None:
    """S01: whatever it is called."""
    assert quote_name('a"b') == '"a""b"'
    odd = replace(column(869), name='v"; DROP TABLE t; --')
    assert described(odd).copy_expressions[0].count('"v""; DROP TABLE t; --"') == 2
    with pytest.raises(ConfigurationError, match="columns v and V"):
        described(column(INT4), replace(column(INT4), name="V"))


KERNELS = {
    "boolean": (column(16), "text.boolean", "binary.boolean"),
    "bytea": (column(17), "text.bytea", "binary.bytea"),
    "name": (column(19), "text.text", "text.text"),
    "bigint": (column(20), "text.number", "binary.int8"),
    "smallint": (column(21), "text.number", "binary.int2"),
    "integer": (column(23), "text.number", "binary.int4"),
    "text": (column(25), "text.text", "text.text"),
    "oid": (column(26), "text.number", "binary.oid"),
    "json": (column(114), "text.text", "text.text"),
    "real": (column(700), "text.number", "binary.float4"),
    "double precision": (column(701), "text.number", "binary.float8"),
    "money": (column(790), "", "binary.money"),
    "date": (column(1082), "text.date", "binary.date"),
    "time": (column(1083), "text.text", "binary.time"),
    "timestamp": (column(1114), "text.timestamp", "binary.timestamp"),
    "timestamptz": (column(1184), "text.timestamp", "binary.timestamp"),
    "interval": (column(1186), "", "binary.interval"),
    "timetz": (column(1266), "text.text", "binary.timetz"),
    "bit": (column(1560), "text.text", "binary.bits"),
    "varbit": (column(1562), "text.text", "binary.bits"),
    "uuid": (column(2950), "text.text", "binary.uuid"),
    "jsonb": (column(3802), "text.text", "binary.jsonb"),
    "cidr": (column(650), "text.text", None),
    "an enum": (column(17001, kind="e"), "text.text", "text.text"),
    "an unknown type": (column(16999), "text.text", None),
    "numeric": (column(NUMERIC), "text.text", "binary.numeric"),
    "numeric(5,2)": (column(NUMERIC, numeric(5, 2)), "text.decimal", "binary.decimal"),
    "numeric(40,2)": (column(NUMERIC, numeric(40, 2)), "text.decimal", "binary.decimal"),
    "integer[]": (column(1007, element_oid=INT4), "", "binary.array"),
}


@pytest.mark.parametrize("kind", KERNELS)
def test_which_compiled_kernel_reads_a_type(kind: str) -> None:
    """A kernel that is not named is not used: nothing differs, except that rows are decoded more slowly."""
    attribute, text, binary = KERNELS[kind]
    codec = codec_of(attribute)
    assert codec.text.kernel == text
    assert (None if codec.binary is None else codec.binary.kernel) == binary


def test_kernel_of_an_array_includes_that_of_its_elements() -> None:
    """It reads both at once."""
    arrays = (column(1007, element_oid=INT4), column(1231, element_oid=NUMERIC), column(1115, element_oid=1114))
    found = [codec_of(a).binary for a in arrays]
    assert [b.element.kernel for b in found if b and b.element] == ["binary.int4", "binary.numeric", "binary.timestamp"]

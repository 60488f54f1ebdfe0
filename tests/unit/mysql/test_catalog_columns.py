"""Columns as described by the catalog become what a table map contains for the same columns."""

from __future__ import annotations

from typing import Any

import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.types.columns import BINARY_COLLATION, CatalogColumn, Policy, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.numbers import bit_metadata, decimal_metadata
from cdcflow.sources.mysql.types.registry import codec_of, extra_of, server_column

COLLATIONS = {"utf8mb4_bin": 46, "latin1_swedish_ci": 8}
BYTES = {"collation": BINARY_COLLATION}
TEXT = {"collation": 46}


def asked(full_type: str, **told: Any) -> CatalogColumn:
    name = full_type.partition("(")[0].partition(" ")[0]
    fields = dict.fromkeys(("octets", "precision", "scale", "fraction", "collation"))
    return CatalogColumn("c", "YES", name, full_type, **{**fields, **told}, extra="")


def of_length(octets: int, collation: str | None = None) -> dict[str, Any]:
    return {"octets": octets, "collation": collation}


SETS = tuple(f"l{i}" for i in range(33))
ENUMS = tuple(f"l{i}" for i in range(256))


def quoted(labels: tuple[str, ...]) -> str:
    return ",".join(f"'{label}'" for label in labels)


CASES: list[tuple[str, dict[str, Any], TypeCode, int, dict[str, Any]]] = [
    ("tinyint(1)", {"precision": 3, "scale": 0}, TypeCode.TINY, 0, {}),
    ("smallint unsigned", {"precision": 5, "scale": 0}, TypeCode.SHORT, 0, {"unsigned": True}),
    ("mediumint", {"precision": 7, "scale": 0}, TypeCode.INT24, 0, {}),
    ("int(10) unsigned", {"precision": 10, "scale": 0}, TypeCode.LONG, 0, {"unsigned": True}),
    ("bigint", {"precision": 19, "scale": 0}, TypeCode.LONGLONG, 0, {}),
    ("float", {"precision": 12}, TypeCode.FLOAT, 4, {}),
    ("double unsigned", {"precision": 22}, TypeCode.DOUBLE, 8, {"unsigned": True}),
    ("decimal(10,2)", {"precision": 10, "scale": 2}, TypeCode.DECIMAL, decimal_metadata(10, 2), {}),
    (
        "decimal(65,30) unsigned",
        {"precision": 65, "scale": 30},
        TypeCode.DECIMAL,
        decimal_metadata(65, 30),
        {"unsigned": True},
    ),
    ("bit(9)", {"precision": 9}, TypeCode.BIT, bit_metadata(9), {}),
    ("year(4)", {}, TypeCode.YEAR, 0, {}),
    ("date", {}, TypeCode.DATE, 0, {}),
    ("time(2)", {"fraction": 2}, TypeCode.TIME, 2, {}),
    ("datetime", {"fraction": 0}, TypeCode.DATETIME, 0, {}),
    ("timestamp(6)", {"fraction": 6}, TypeCode.TIMESTAMP, 6, {}),
    ("char(10)", of_length(40, "utf8mb4_bin"), TypeCode.CHAR, 40, TEXT),
    ("binary(7)", of_length(7), TypeCode.CHAR, 7, BYTES),
    ("varchar(300)", of_length(300, "latin1_swedish_ci"), TypeCode.VARCHAR, 300, {"collation": 8}),
    ("varbinary(20)", of_length(20), TypeCode.VARCHAR, 20, BYTES),
    (
        "varchar(20) /*M!100301 COMPRESSED*/",
        of_length(80, "utf8mb4_bin"),
        TypeCode.VARCHAR_COMPRESSED,
        81,
        TEXT,
    ),
    ("tinytext", of_length(255, "utf8mb4_bin"), TypeCode.BLOB, 1, TEXT),
    ("text", of_length(65535, "utf8mb4_bin"), TypeCode.BLOB, 2, TEXT),
    ("mediumblob", of_length(16777215), TypeCode.BLOB, 3, BYTES),
    ("longblob", of_length(4294967295), TypeCode.BLOB, 4, BYTES),
    ("blob /*M!100301 COMPRESSED*/", of_length(65535), TypeCode.BLOB_COMPRESSED, 2, BYTES),
    ("enum('a','b')", {"collation": "utf8mb4_bin"}, TypeCode.ENUM, 1, {**TEXT, "labels": ("a", "b")}),
    (
        r"enum('it''s','a\\b','two\nlines','\x')",
        {"collation": "utf8mb4_bin"},
        TypeCode.ENUM,
        1,
        {**TEXT, "labels": ("it's", "a\\b", "two\nlines", "x")},
    ),
    (f"enum({quoted(ENUMS[:255])})", {"collation": "utf8mb4_bin"}, TypeCode.ENUM, 1, {**TEXT, "labels": ENUMS[:255]}),
    (f"enum({quoted(ENUMS)})", {"collation": "utf8mb4_bin"}, TypeCode.ENUM, 2, {**TEXT, "labels": ENUMS}),
    (f"set({quoted(SETS[:8])})", {"collation": "utf8mb4_bin"}, TypeCode.SET, 1, {**TEXT, "labels": SETS[:8]}),
    (f"set({quoted(SETS[:9])})", {"collation": "utf8mb4_bin"}, TypeCode.SET, 2, {**TEXT, "labels": SETS[:9]}),
    (f"set({quoted(SETS[:32])})", {"collation": "utf8mb4_bin"}, TypeCode.SET, 4, {**TEXT, "labels": SETS[:32]}),
    (f"set({quoted(SETS)})", {"collation": "utf8mb4_bin"}, TypeCode.SET, 8, {**TEXT, "labels": SETS}),
    ("json", {}, TypeCode.JSON, 4, {}),
    ("point", {}, TypeCode.GEOMETRY, 4, {}),
    ("vector(3)", {}, TypeCode.VECTOR, 4, {}),
    ("uuid", {}, TypeCode.CHAR, 16, {**BYTES, "extra": "uuid"}),
    ("inet6", {}, TypeCode.CHAR, 16, {**BYTES, "extra": "inet6"}),
    ("inet4", {}, TypeCode.CHAR, 4, {**BYTES, "extra": "inet4"}),
]


@pytest.mark.parametrize(("full_type", "told", "code", "metadata", "rest"), CASES, ids=[c[0][:30] for c in CASES])
def test_column_of_the_catalog_is_the_one_of_a_table_map(
    full_type: str, told: dict[str, Any], code: TypeCode, metadata: int, rest: dict[str, Any]
) -> None:
    """M34: otherwise a chunk's rows would have another shape than the stream's."""
    assert server_column(asked(full_type, **told), COLLATIONS) == ServerColumn("c", code, metadata, True, **rest)


def test_vector_of_mariadb_is_bytes_to_its_table_maps() -> None:
    """Otherwise its backfill would give lists, and its stream bytes."""
    column = asked("vector(3)", octets=12)
    expected = ServerColumn("c", TypeCode.VARCHAR, 12, True, collation=BINARY_COLLATION, extra="vector")
    assert server_column(column, COLLATIONS, is_mariadb=True) == expected


def test_types_in_the_change_log_show_the_type_of_a_dropped_column() -> None:
    """Only where it is stored in that form: the column may have been altered since."""
    uuid, bytes_of_16 = (
        ServerColumn("c", TypeCode.CHAR, 16, True, collation=BINARY_COLLATION, extra=e) for e in ("uuid", "")
    )
    assert extra_of(bytes_of_16, "uuid") == uuid.extra
    assert extra_of(ServerColumn("c", TypeCode.VARCHAR, 4000, True, collation=BINARY_COLLATION), "vector") == "vector"
    others = [
        ServerColumn("c", TypeCode.CHAR, 4, True, collation=BINARY_COLLATION),
        ServerColumn("c", TypeCode.LONG, 0, True),
    ]
    assert [extra_of(c, "uuid") for c in others] == ["", ""]
    assert extra_of(bytes_of_16, "binary(16)") == ""


def test_column_that_takes_no_null_is_marked_not_null() -> None:
    """The key of a table is found by it."""
    column = CatalogColumn("id", "NO", "int", "int", None, 10, 0, None, None, "auto_increment")
    assert server_column(column, {}) == ServerColumn("id", TypeCode.LONG, 0, False)


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (asked("datetime /* mariadb-5.3 */", fraction=0), "column c is of a kind from before MariaDB 10.1"),
        (asked("char(1)", octets=4, collation="klingon_ci"), "has the collation klingon_ci, which the server does not"),
    ],
)
def test_unsupported_column_is_refused_with_an_error_that_names_it(column: CatalogColumn, why: str) -> None:
    """M35: unknown means stop."""
    with pytest.raises(ConfigurationError, match=why) as caught:
        server_column(column, COLLATIONS)
    assert "leave its table out" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("column", "form", "number", "width", "prefix"),
    [
        (ServerColumn("c", TypeCode.TINY, 0, True), "signed", 1, 1, 0),
        (ServerColumn("c", TypeCode.SHORT, 0, True, unsigned=True), "unsigned", 2, 2, 0),
        (ServerColumn("c", TypeCode.INT24, 0, True), "medium", 1, 3, 0),
        (ServerColumn("c", TypeCode.INT24, 0, True, unsigned=True), "medium", 0, 3, 0),
        (ServerColumn("c", TypeCode.FLOAT, 4, True), "float", 4, 4, 0),
        (ServerColumn("c", TypeCode.DOUBLE, 8, True), "float", 8, 8, 0),
        (ServerColumn("c", TypeCode.DECIMAL, decimal_metadata(10, 2), True), "decimal", 10 << 8 | 2, 5, 0),
        (ServerColumn("c", TypeCode.BIT, bit_metadata(9), True), "bits", 2, 2, 0),
        (ServerColumn("c", TypeCode.YEAR, 0, True), "year", 0, 1, 0),
        (ServerColumn("c", TypeCode.DATE, 0, True), "date", 0, 3, 0),
        (ServerColumn("c", TypeCode.TIME, 2, True), "time", 2, 4, 0),
        (ServerColumn("c", TypeCode.DATETIME, 0, True), "datetime", 0, 5, 0),
        (ServerColumn("c", TypeCode.DATETIME, 5, True), "datetime", 5, 8, 0),
        (ServerColumn("c", TypeCode.TIMESTAMP, 6, True), "timestamp", 6, 7, 0),
        (ServerColumn("c", TypeCode.CHAR, 255, True, collation=46), "text utf8mb4", 0, 0, 1),
        (ServerColumn("c", TypeCode.CHAR, 256, True, collation=46), "text utf8mb4", 0, 0, 2),
        (ServerColumn("c", TypeCode.CHAR, 7, True, collation=63), "fixed", 7, 0, 1),
        (ServerColumn("c", TypeCode.VARCHAR, 300, True, collation=8), "text latin1", 0, 0, 2),
        (ServerColumn("c", TypeCode.VARCHAR, 20, True, collation=63), "bytes", 0, 0, 1),
        (ServerColumn("c", TypeCode.BLOB, 3, True, collation=46), "text utf8mb4", 0, 0, 3),
        (ServerColumn("c", TypeCode.BLOB, 4, True, collation=63), "bytes", 0, 0, 4),
        (ServerColumn("c", TypeCode.VARCHAR_COMPRESSED, 81, True, collation=46), "", 0, 0, 1),
        (ServerColumn("c", TypeCode.BLOB_COMPRESSED, 2, True, collation=63), "", 0, 0, 2),
        (ServerColumn("c", TypeCode.ENUM, 2, True, labels=("a",)), "enum", 2, 2, 0),
        (ServerColumn("c", TypeCode.SET, 8, True, labels=("a",)), "set", 8, 8, 0),
        (ServerColumn("c", TypeCode.JSON, 4, True), "json", 0, 0, 4),
        (ServerColumn("c", TypeCode.GEOMETRY, 4, True), "", 0, 0, 4),
        (ServerColumn("c", TypeCode.VECTOR, 2, True), "", 0, 0, 2),
        (ServerColumn("c", TypeCode.VARCHAR, 2000, True, collation=63, extra="vector"), "", 0, 0, 2),
        (ServerColumn("c", TypeCode.CHAR, 16, True, collation=63, extra="uuid"), "", 0, 0, 1),
    ],
)
def test_how_a_row_image_holds_a_column_and_which_kernel_reads_it(
    column: ServerColumn, form: str, number: int, width: int, prefix: int
) -> None:
    """A kernel that is not named is not used: nothing differs, except that rows are decoded more slowly. The other
    three are where the next column begins."""
    found = codec_of(column, TableId("shop", "t"), Policy())
    assert (found.form, found.number, found.width, found.prefix) == (form, number, width, prefix)


@pytest.mark.parametrize(("code", "width"), [(TypeCode.DATE, 3), (TypeCode.DATETIME, 7), (TypeCode.TIMESTAMP, 6)])
def test_a_date_that_is_text_is_as_wide_and_has_no_kernel(code: TypeCode, width: int) -> None:
    """Only the conversion of its bytes differs."""
    found = codec_of(ServerColumn("c", code, 3 * (code != TypeCode.DATE), True), TableId("s", "t"), Policy("text"))
    assert (found.form, found.number, found.width, found.prefix) == ("", 0, width, 0)

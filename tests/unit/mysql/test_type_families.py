"""The registry of type families: each type belongs to exactly one of them."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.mysql.values import column, table

from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql.types.columns import ServerColumn, TypeCode
from cdcflow.sources.mysql.types.registry import COLLATED, FAMILIES, METADATA_BYTES, SIGNED, family_of


def test_each_type_code_is_one_familys() -> None:
    """If two families had the same code, the later one would silently take all of its columns."""
    counted = Counter(code for family in FAMILIES for code in (*family.codes, *family.old))
    assert counted == Counter(TypeCode)
    assert counted.keys() <= METADATA_BYTES.keys()


def test_each_name_in_the_catalog_is_one_familys() -> None:
    """Otherwise a chunk's column would have another shape than the stream's (M34)."""
    assert set(Counter(name for family in FAMILIES for name in family.names).values()) == {1}
    assert set(Counter(extra for family in FAMILIES for extra in family.extras).values()) == {1}


@pytest.mark.parametrize("code", [code for code in TypeCode if code not in (0, 7, 11, 12)])
def test_what_a_family_counts_in_a_table_map_are_its_own_codes(code: TypeCode) -> None:
    """A table map's bits would be those of another column."""
    family = family_of(column("c", code, 4))
    assert family is not None
    assert code in family.codes
    assert family.signed | family.collated <= family.codes.keys()


def test_type_without_a_family_is_refused_with_an_error_that_names_it() -> None:
    """M35: unknown means stop."""
    with pytest.raises(ConfigurationError, match=r"shop\.orders\.c has the type number 253"):
        table(ServerColumn("c", 253, 4, True))


IN_A_TABLE_MAP = {
    0: "DECIMAL_OLD TINY SHORT LONG LONGLONG INT24 DATE YEAR TIMESTAMP_OLD TIME_OLD DATETIME_OLD",
    1: "FLOAT DOUBLE TIMESTAMP DATETIME TIME BLOB BLOB_COMPRESSED JSON GEOMETRY VECTOR",
    2: "DECIMAL BIT VARCHAR VARCHAR_COMPRESSED CHAR ENUM SET",
}


@pytest.mark.parametrize("size", IN_A_TABLE_MAP)
def test_number_of_bytes_of_each_type_in_a_table_map(size: int) -> None:
    """One byte more or less, and every column after it is misread (binary_log::Table_map_event)."""
    found = {code.name for code in TypeCode if METADATA_BYTES[code] == size}
    assert found == set(IN_A_TABLE_MAP[size].split())


def test_which_types_a_table_map_counts_in_its_lists() -> None:
    """The servers count by type alone, also those that have no sign or no character set."""
    numbers = "TINY SHORT INT24 LONG LONGLONG FLOAT DOUBLE DECIMAL YEAR"
    assert frozenset(TypeCode[name] for name in numbers.split()) == SIGNED
    texts = "CHAR VARCHAR VARCHAR_COMPRESSED BLOB BLOB_COMPRESSED VECTOR"
    assert frozenset(TypeCode[name] for name in texts.split()) | {249, 250, 251, 253} == COLLATED

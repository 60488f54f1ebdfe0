"""The registry of type families: each type belongs to exactly one of them."""

from __future__ import annotations

from collections import Counter

import pytest
from mysqlvalues import column, table

from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql.types.columns import ServerColumn, TypeCode
from cdcflow.sources.mysql.types.registry import FAMILIES, METADATA_BYTES, family_of


def test_each_type_code_is_one_familys() -> None:
    """Of two families with the same code, the later one would take all of its columns without a word."""
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


def test_type_without_a_family_is_refused_by_name() -> None:
    """M35: unknown means stop."""
    with pytest.raises(ConfigurationError, match=r"shop\.orders\.c has the type number 253"):
        table(ServerColumn("c", 253, 4, True))

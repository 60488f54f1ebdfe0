"""How a chunk is cut into parts, before any server is queried."""

from __future__ import annotations

import pytest

from cdcflow.sources.engine.key_ranges import sizes
from cdcflow.sources.mysql.keys import table_key
from cdcflow.sources.mysql.types.columns import ServerColumn, TypeCode

INT = ServerColumn("a", TypeCode.LONG, 0, False)
ENUM = ServerColumn("e", TypeCode.ENUM, 1, False, collation=45, labels=("z", "b"))
FLOAT = ServerColumn("f", TypeCode.FLOAT, 4, False)


@pytest.mark.parametrize(
    ("rows", "parts_max", "expected"),
    [
        (1000, 2, [1000]),
        (19_999, 2, [19_999]),
        (20_000, 2, [10_000, 10_000]),
        (20_001, 16, [10_000, 10_001]),
        (100_000, 3, [33_333, 33_333, 33_334]),
        (100_000, 1, [100_000]),
    ],
)
def test_number_of_parts_is_limited_by_their_benefit(rows: int, parts_max: int, expected: list[int]) -> None:
    """A connection for a few rows costs more than it reads."""
    assert sizes(rows, parts_max, 10_000) == expected


@pytest.mark.parametrize(
    ("columns", "is_sought"), [((INT,), True), ((ENUM,), False), ((FLOAT,), False), ((INT, ENUM), False)]
)
def test_key_that_no_index_is_sought_by_is_not_cut(columns: tuple[ServerColumn, ...], is_sought: bool) -> None:
    """W19: ENUM is compared as a number, so each part would scan the whole table."""
    assert table_key(columns, "PRIMARY").is_sought == is_sought

"""Types whose values have the same text on every server and engine, so that digests of rows may be compared."""

from __future__ import annotations

import pytest

from cdcflow.model.digest import is_portable


@pytest.mark.parametrize("type_", ["bigint", "boolean", "string", "binary", "date", "timestamp", "decimal(38,10)"])
def test_plain_type_is_portable(type_: str) -> None:
    """Otherwise each such table would be compared row by row."""
    assert is_portable(type_)


@pytest.mark.parametrize(
    "type_", ["float", "double", "array<int>", "struct<a:int>", "map<string,int>", "decimal(38,38)"]
)
def test_type_with_a_text_of_one_engine_is_not_portable(type_: str) -> None:
    """Equal rows would have different digests in two engines, and be reported as different."""
    assert not is_portable(type_)

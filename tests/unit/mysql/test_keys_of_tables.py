"""Which of a table's indexes is the key of its rows."""

from __future__ import annotations

from typing import Any

import pytest

from cdcflow.model.table import TableId
from cdcflow.sources.mysql import catalog

Row = tuple[str, str, str, str | None, str, int | None]
ORDERS = TableId("shop", "orders")


def _index(name: str, column: str | None, nullable: str = "", part: int | None = None) -> Row:
    return ("shop", "orders", name, column, nullable, part)


@pytest.mark.parametrize(
    ("indexes", "key"),
    [
        ([_index("PRIMARY", "id")], (("id",), "PRIMARY")),
        ([_index("PRIMARY", "note", part=10)], (("note",), "PRIMARY")),
        ([_index("u", "a"), _index("u", "b")], (("a", "b"), "u")),
        ([_index("u", "a"), _index("u", "b", nullable="YES")], None),
        ([_index("u", "note", part=10)], None),
        ([_index("u", None)], None),
        ([_index("u", "a"), _index("u", None)], None),
        ([_index("u", "note", part=10), _index("w", "a")], (("a",), "w")),
    ],
    ids=["primary", "primary of a prefix", "unique", "NULL", "prefix", "expression", "also an expression", "second"],
)
def test_a_key_has_whole_columns_without_nulls(
    monkeypatch: pytest.MonkeyPatch, indexes: list[Row], key: tuple[tuple[str, ...], str] | None
) -> None:
    """A prefix or an expression that is unique does not name the columns by which a row can be found."""
    monkeypatch.setattr(catalog, "query", lambda *_: indexes)
    nothing: Any = None
    assert catalog._keys(nothing, "TRUE", {ORDERS: None}).get(ORDERS) == key

"""A table at another server: whether the rows that the log has can be compared with it, instead of read again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.capture.small_source import BIGINT, ITEMS

from cdcflow.capture.interleave.progress import TableProgress
from cdcflow.capture.reread import is_comparable
from cdcflow.model.position import Offset
from cdcflow.model.table import Column, Table

WIDER = replace(ITEMS, columns=(*ITEMS.columns, Column("added", 9, BIGINT)))
KNOWN = TableProgress("done", 1, Offset(5), incarnation=ITEMS.incarnation)


@pytest.mark.parametrize(("logged", "comparable"), [(None, True), (ITEMS, True), (WIDER, False)])
def test_table_is_compared_unless_the_log_has_rows_with_other_columns(logged: Table | None, comparable: bool) -> None:
    """A large table without rows in the log has nothing that differs, and would be read again for no reason."""
    assert is_comparable(KNOWN, ITEMS, logged) is comparable


def test_table_with_another_number_is_not_compared() -> None:
    """It may be a table that only has the same name."""
    assert not is_comparable(replace(KNOWN, incarnation=ITEMS.incarnation + 1), ITEMS, ITEMS)

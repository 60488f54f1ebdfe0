"""Rows of a file are in DuckDB's order, also where Arrow sorts them."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdcflow.model.file_layout import SortColumn
from cdcflow.tables.local import session as sessions
from cdcflow.tables.local.session import DuckSession

CHANCE = random.Random(11)
TEXTS = ["", "a", "A", "é", "e\u0301", "\U0001f600", "\uffff", "z", "aa", "ab\0", "ab"]
MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ROWS = pa.table(
    {
        "number": pa.array([CHANCE.randrange(-3, 3) for _ in range(300)], pa.int64()),
        "small": pa.array([CHANCE.randrange(200) for _ in range(300)], pa.uint8()),
        "text": [CHANCE.choice(TEXTS) for _ in range(300)],
        "day": [MOMENT.date() - dt.timedelta(CHANCE.randrange(9)) for _ in range(300)],
        "at": [MOMENT + dt.timedelta(microseconds=CHANCE.randrange(9)) for _ in range(300)],
        "sparse": pa.array([CHANCE.choice([None, 1, 2]) for _ in range(300)], pa.int32()),
        "real": [CHANCE.choice([0.0, -0.0, float("nan"), 1.5, None]) for _ in range(300)],
    }
)


@pytest.mark.parametrize(
    "by", [["number"], ["text"], ["small", "text"], ["at", "number"], ["day"], ["sparse"], ["real"]]
)
@pytest.mark.parametrize("descending", [False, True])
def test_few_rows_are_sorted_as_many(by: list[str], descending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NULL, NaN and the two zeros have their places in DuckDB's order, too."""
    columns = [SortColumn(name, descending) for name in by]
    session = DuckSession()
    try:
        few = session.in_order(ROWS, columns)
        monkeypatch.setattr(sessions, "SORTED_ROWS", 0)
        many = session.in_order(ROWS, columns)
    finally:
        session.close()
    assert repr(few.select(by).to_pylist()) == repr(many.select(by).to_pylist())
    assert sorted(map(repr, few.to_pylist())) == sorted(map(repr, ROWS.to_pylist()))


def test_plain_values_are_sorted_without_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query for each commit of a few rows took longer than the rest of the write."""
    session = DuckSession()
    monkeypatch.setattr(session, "over", lambda *_: pytest.fail("a query"))
    found = session.in_order(ROWS, [SortColumn("number"), SortColumn("text", descending=True)])
    numbers = found.column("number")
    assert pc.all(pc.greater_equal(numbers.slice(1), numbers.slice(0, 299))).as_py()
    session.close()

"""Which rows of a file a merge looks for, and the sessions in which it does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.tables.local import dialect
from cdcflow.tables.local.row_changes import Keys
from cdcflow.tables.local.session import DuckSession


class _Layout:
    """What `Keys` needs of a range's layout: a key of one column."""

    def __init__(self) -> None:
        self.key = (0,)
        self.target = self
        self.columns = [pa.field("id", pa.int64())]


def _keys(session: DuckSession, changed: Sequence[Any], type_: pa.DataType) -> Keys:
    layout: Any = _Layout()
    changes = session.take("changes", pa.table({"c0": pa.array(changed, type_)}))
    return Keys(session, layout, changes, pa.schema([("id", type_)]))


@pytest.mark.parametrize("type_", [pa.int64(), pa.int16(), pa.string()], ids=str)
def test_rows_with_a_key_are_found_in_files_of_any_order(type_: pa.DataType) -> None:
    """Files are written in the key's order, except by others; a key may be in a file several times, and be NULL."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for turn in range(60):
        with closing(DuckSession()) as session:
            changed = [chance.choice([None, *range(-4, 9)]) for _ in range(chance.randrange(6))]
            there: list[int | None] = [chance.randrange(-6, 12) for _ in range(chance.randrange(20))]
            there = sorted(there, key=lambda n: n or 0) if turn % 2 else [*there, None]
            given, held = (
                [None if n is None else str(n) for n in v] if type_ == pa.string() else v for v in (changed, there)
            )
            keys = _keys(session, given, type_)
            rows = pa.table({"id": pa.chunked_array([pa.array(held[:7], type_), pa.array(held[7:], type_)])})
            expected = [n for n, id_ in enumerate(there) if id_ is not None and id_ in changed]
            assert np.sort(keys.pick(rows)).tolist() == expected, (changed, there)


@pytest.mark.parametrize("type_", [pa.int64(), pa.string()], ids=str)
def test_files_that_cannot_have_a_key_are_not_read(type_: pa.DataType) -> None:
    """Bounds are inclusive; a file without bounds may have any key."""
    with closing(DuckSession()) as session:
        ends: list[tuple[Any, Any] | None] = [(1, 2), (3, 4), None, (5, 5), (6, 9)]
        changed: list[Any] = [2, 5]
        if type_ == pa.string():
            ends = [None if end is None else (str(end[0]), str(end[1])) for end in ends]
            changed = ["2", "5"]
        keys = _keys(session, changed, type_)
        assert keys.near(ends) == [0, 2, 3]
        assert keys.near([None, None]) == [0, 1]


def test_sessions_at_the_same_time_do_not_see_each_other_s_tables() -> None:
    """Three tables are merged at once, in one database."""
    with closing(DuckSession()) as one, closing(DuckSession()) as other:
        names = {one.take("rows", pa.table({"n": [1]})), other.take("rows", pa.table({"n": [2]}))}
        views = {one.view_of("given", pa.table({"n": [3]})), other.view_of("given", pa.table({"n": [4]}))}
        assert (len(names), len(views)) == (1, 1), "their names are the same"
        (name,), (view,) = names, views
        query = f"SELECT (SELECT n FROM {name}), (SELECT n FROM {view}), size(array(1, 2))"
        assert (one.rows(query), other.rows(query)) == ([(1, 3, 2)], [(2, 4, 2)])


def test_session_after_an_error_that_ended_the_database_has_a_new_one() -> None:
    """An internal error of DuckDB ends all connections to it; a process that merges for weeks continues."""
    with closing(DuckSession()) as before:
        assert before.rows("SELECT 1") == [(1,)]
    dialect._database().close()
    with closing(DuckSession()) as after:
        assert after.rows("SELECT size(array(1))") == [(1,)]

"""Places and splits in what a window holds."""

from __future__ import annotations

import numpy as np
import pytest
from tests.simulation.transactions import Plain, Row, Shape, Transaction

from cdcflow.capture.interleave.window import held_before, split_runs, token, window_number
from cdcflow.model.change import Uint64s
from cdcflow.model.position import Epoch, Token
from cdcflow.model.table import TableId

HEAP, OTHER = TableId("public", "heap"), TableId("public", "other")


class Sees:
    def __init__(self, *xids: int) -> None:
        self._seen = np.array(xids, np.uint64)

    def hidden(self, xids: Uint64s) -> Uint64s:
        return xids[~np.isin(xids, self._seen)]

    def maybe_hidden(self) -> Uint64s:
        return np.empty(0, np.uint64)


def run(*items: tuple[int, TableId]) -> Plain:
    shape = Shape(("a",))
    return Plain(tuple(Transaction(xid, xid, (Row(table, shape, "c", {"a": 1}),)) for xid, table in items))


HELD = [run((1, OTHER), (2, HEAP)), run((3, HEAP), (4, OTHER), (5, HEAP))]


@pytest.mark.parametrize(
    ("seen", "before"),
    [((), 0), ((2,), 2), ((2, 3), 3), ((2, 3, 5), 5), ((3,), None), ((2, 5), None), ((1, 4), 0)],
)
def test_chunk_is_placed_after_all_it_saw_and_before_all_it_did_not(seen: tuple[int, ...], before: int | None) -> None:
    """Transactions of other tables do not count; a gap in what was seen means that there is no place (P08)."""
    assert held_before(HEAP, HELD, Sees(*seen)) == before


@pytest.mark.parametrize("count", range(6))
def test_runs_split_between_any_two_transactions(count: int) -> None:
    """Nothing is lost or doubled where a chunk is inserted between held transactions."""
    first, rest = split_runs(HELD, count)
    xids = [[item.xid for part in parts for item in part.items] for parts in (first, rest)]  # type: ignore[attr-defined]
    assert xids == [[1, 2, 3, 4, 5][:count], [1, 2, 3, 4, 5][count:]]


@pytest.mark.parametrize("text", ["2/7/low", "1/7", "1/x/low", "1/7/middle", "hello", "", "1/7/low/high", "/7/low"])
def test_other_marks_belong_to_no_window(text: str) -> None:
    """Marks of another run, and other programs' messages, mean nothing."""
    assert window_number(Token(text), Epoch(1)) is None


def test_a_token_names_its_window() -> None:
    """The mark that cdcflow writes is the one it reads."""
    assert window_number(token(Epoch(1), 7, "high"), Epoch(1)) == 7


def test_runs_that_are_not_split_stay_unchanged_and_no_part_is_empty() -> None:
    """A piece without transactions would be a run without a place."""
    first, rest = split_runs(HELD, 2)
    assert (len(first), len(rest)) == (1, 1)
    assert first[0] is HELD[0]
    assert rest[0] is HELD[1]
    assert [len(part) for part in split_runs(HELD, 0)] == [0, 2]
    assert [len(part) for part in split_runs(HELD, 5)] == [2, 0]
    assert [len(part) for part in split_runs(HELD, 3)] == [2, 1]

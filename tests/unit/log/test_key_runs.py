"""Which keys a file has and that each appears once: what a first merge trusts the manifest for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcflow.log.files.tally import ShapeTally
from cdcflow.log.format.keyruns import RUNS_MAX, KeyRuns, hold
from cdcflow.log.format.rows import ShapeEntry
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType

TYPES = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
ENDS = {arrow: (np.iinfo(arrow.to_pandas_dtype()).min, np.iinfo(arrow.to_pandas_dtype()).max) for arrow in TYPES}


def runs_of(keys: Sequence[int | None], arrow: pa.DataType, splits: Sequence[int] = ()) -> Any:
    """What is claimed of these keys when they arrive in batches that end there."""
    runs = KeyRuns()
    whole = pa.array(keys, arrow)
    at = [0, *sorted({s for s in splits if 0 < s < len(keys)}), len(keys)]
    for first, last in pairwise(at):
        runs.add(whole.slice(first, last - first))
    return runs.text()


def expected(keys: Sequence[int | None]) -> list[tuple[int, int]] | None:
    """The same in plain words: keys that follow each other without a gap are a run. Nothing, if one comes twice or is
    NULL."""
    found: list[tuple[int, int]] = []
    if None in keys or len(set(keys)) < len(keys):
        return None
    for key in sorted(k for k in keys if k is not None):
        if found and found[-1][1] + 1 == key:
            found[-1] = found[-1][0], key
        else:
            found.append((key, key))
    return found


@st.composite
def few_keys(draw: st.DrawFn) -> tuple[pa.DataType, list[int | None]]:
    """Too few for a gap to be closed: near an end of their type or around 0, dense or not, rarely twice or NULL."""
    arrow = draw(st.sampled_from(TYPES))
    low, high = ENDS[arrow]
    near = draw(st.sampled_from([low, high - 70, max(low, -35)]))
    keys: list[int | None] = list(
        draw(st.lists(st.integers(near, near + 70), min_size=1, max_size=RUNS_MAX, unique=draw(st.booleans())))
    )
    keys += draw(st.sampled_from([[], [], [], [low], [high], [low, high], [None]]))
    order = draw(st.sampled_from(["up", "down", "as they are"]))
    if order != "as they are" and None not in keys:
        keys.sort(reverse=order == "down")
    return arrow, keys[:RUNS_MAX]


@settings(max_examples=500, deadline=None)
@given(few_keys(), st.lists(st.integers(0, RUNS_MAX), max_size=6))
def test_few_keys_are_recorded_exactly(drawn: tuple[pa.DataType, list[int | None]], splits: list[int]) -> None:
    """Whatever their width, their order, and where a batch ends: the promise depends on none of these."""
    arrow, keys = drawn
    found = runs_of(keys, arrow, splits)
    wanted = expected(keys)
    assert (None if found is None else [(int(a), int(b)) for a, b in found]) == wanted


@pytest.mark.parametrize("seed", range(150))
def test_claims_about_many_keys_are_true(seed: int) -> None:
    """A key that appears twice while the file claims once would be in the table twice, permanently."""
    chance = np.random.default_rng(seed)
    count = int(chance.integers(100, 3000))
    keys = np.cumsum(chance.integers(1, chance.choice([2, 3, 1000]), count)) - int(chance.integers(0, 10_000))
    if chance.random() < 0.7:  # some rows come late
        for _ in range(int(chance.integers(1, 5))):
            a, b = sorted(chance.integers(0, count, 2))
            keys[a:b] = np.roll(keys[a:b], int(chance.integers(1, 5)))
    twice = chance.random() < 0.5
    if twice:
        a, b = chance.choice(count, 2, replace=False)
        keys[a] = keys[b]
    found = runs_of(keys.tolist(), pa.int64(), chance.integers(0, count, int(chance.integers(0, 12))).tolist())
    if found is None:
        return
    assert not twice, f"seed {seed}"
    ends = [int(end) for run in found for end in run]
    assert len(found) <= RUNS_MAX
    assert ends == sorted(ends)
    assert set(ends) <= set(keys.tolist())
    assert all(any(int(a) <= key <= int(b) for a, b in found) for key in keys.tolist()), f"seed {seed}"
    assert hold(found, pa.array(keys))


def read_in_turn(chance: np.random.Generator, ranges: int) -> Iterator[np.ndarray[Any, Any]]:
    """Chunks of a backfill that reads this many ranges of a sparse key at once."""
    left = []
    for number in range(ranges):
        count = int(chance.integers(500, 1500))
        left.append(number * 10**6 + np.cumsum(chance.integers(1, 50, count)))
    while left:
        at = int(chance.integers(len(left)))
        chunk = int(chance.integers(20, 200))
        yield left[at][:chunk]
        left[at] = left[at][chunk:]
        if not len(left[at]):
            left.pop(at)


@pytest.mark.parametrize("ranges", [1, 2, 3, 16])
@pytest.mark.parametrize("seed", range(5))
def test_ranges_that_are_read_in_turn_are_recorded_separately(ranges: int, seed: int) -> None:
    """That is how a backfill writes: runs that ascend go from one range into the next one, and back."""
    chance = np.random.default_rng(seed)
    keys = np.concatenate(list(read_in_turn(chance, ranges)))
    found = runs_of(keys.tolist(), pa.int64(), list(range(0, len(keys), 300)))
    assert found is not None, f"seed {seed}"
    told = [(int(a), int(b)) for a, b in found]
    for number in range(ranges - 1):
        assert not any(a < number * 10**6 + 10**5 < b for a, b in told), "a run spans the gap between two ranges"


def test_key_that_arrives_late_is_taken_where_it_was_missing() -> None:
    """Transactions of a sequence commit in another order than they took its numbers."""
    late = [*range(1, 500), *range(501, 900), 500, *range(900, 1000)]
    assert runs_of(late, pa.int64(), [600, 899]) == (("1", "999"),)


def test_the_widest_gaps_stay_open_and_the_others_are_closed() -> None:
    """What a range leaves unread is a wider gap than those between its keys."""
    keys = [n * 10 for n in range(RUNS_MAX + 10)]
    keys += [keys[-1] + 1000]
    found = runs_of(keys, pa.int32())
    assert found is not None
    assert len(found) == RUNS_MAX
    assert found[-1] == (str(keys[-1]), str(keys[-1]))
    assert runs_of([*keys, keys[-1] - 500], pa.int32(), [len(keys)]) is not None
    closed = next((a, b) for a, b in found if a != b)
    assert runs_of([*keys, int(closed[0]) + 1], pa.int32(), [len(keys)]) is None


def test_gaps_are_measured_over_the_whole_width() -> None:
    """As a signed number the widest gap of all is negative, and would be closed first."""
    low, high = ENDS[pa.int64()]
    keys = [low, *(n * 10 for n in range(RUNS_MAX + 10)), high]
    found = runs_of(keys, pa.int64())
    assert found is not None
    assert (found[0], found[-1]) == ((str(low),) * 2, (str(high),) * 2)
    top = ENDS[pa.uint64()][1]
    assert runs_of([0, top, top - 1], pa.uint64()) == (("0", "0"), (str(top - 1), str(top)))


@pytest.mark.parametrize(
    ("arrow", "texts"),
    [
        (pa.date32(), (("1970-01-02", "1970-01-03"), ("1970-01-09", "1970-01-09"))),
        (
            pa.timestamp("us"),
            (
                ("1970-01-01 00:00:00.000001", "1970-01-01 00:00:00.000002"),
                ("1970-01-01 00:00:00.000008", "1970-01-01 00:00:00.000008"),
            ),
        ),
        (
            pa.timestamp("us", tz="UTC"),
            (
                ("1970-01-01 00:00:00.000001Z", "1970-01-01 00:00:00.000002Z"),
                ("1970-01-01 00:00:00.000008Z", "1970-01-01 00:00:00.000008Z"),
            ),
        ),
        (pa.timestamp("ns"), None),
        (pa.string(), None),
        (pa.float64(), None),
        (pa.bool_(), None),
        (pa.decimal128(10, 0), None),
        (pa.time64("us"), None),
    ],
    ids=str,
)
def test_other_types_than_integers(arrow: pa.DataType, texts: Any) -> None:
    """Days and microseconds are integers; no engine keeps nanoseconds, and texts are in the server's order."""
    values = pa.array([1, 2, 8], pa.int32() if arrow == pa.date32() else pa.int64())
    if arrow == pa.bool_():
        values = pa.array([False, True])
    elif pa.types.is_decimal(arrow):
        values = values.cast(pa.decimal128(19, 0)).cast(arrow)
    else:
        values = values.cast(arrow)
    runs = KeyRuns()
    runs.add(values)
    assert runs.text() == texts
    if texts is not None:
        assert hold(texts, values)


def test_claim_that_failed_once_is_not_made_later() -> None:
    """A NULL in the first batch, and only numbers after that."""
    assert runs_of([None, 1, 2, 3], pa.int32(), [1, 2]) is None
    assert runs_of([5, 5, 7, 9], pa.int32(), [2, 3]) is None
    assert KeyRuns().text() is None


@pytest.mark.parametrize(
    ("runs", "is_so"),
    [
        ([("1", "3"), ("7", "7")], True),
        ([("0", "9")], True),
        ([("1", "3"), ("8", "9")], False),
        ([("1", "2"), ("7", "7")], False),
        ([("2", "3"), ("7", "7")], False),
        ([("1", "3")], False),
    ],
)
def test_a_promise_is_compared_with_the_keys(runs: list[tuple[str, str]], is_so: bool) -> None:
    """`log check --deep` does so."""
    assert hold(runs, pa.array([1, 7, 3, 2], pa.int16())) is is_so
    assert not hold(runs, pa.array([1, 7, 3, 2, 3], pa.int16())), "one comes twice"
    assert not hold(runs, pa.array([1, 7, 3, 2, None], pa.int16()))


# ── as sealing takes them ───────────────────────────────────────────────────────────────────────────────────


def table(key: tuple[str, ...] = ("id",)) -> Table:
    columns = (Column("id", 1, ColumnType("x", pa.int64())), Column("line", 2, ColumnType("x", pa.int64())))
    return Table(TableId("shop", "t"), 1, columns, key)


def told(rows: Sequence[tuple[str, int, int]], key: tuple[str, ...] = ("id",)) -> Any:
    shape = table(key)
    tally = ShapeTally(ShapeEntry(shape, 1))
    for offset, (op, id_, line) in enumerate(rows, start=1):
        row = {"_offset": offset, "_txn": offset, "_commit_ts": offset, "_op": op, "id": id_, "line": line}
        tally.add(pa.RecordBatch.from_pylist([row], shape.log_schema), 0)
    return tally.entry("t.parquet", 1, "").key_runs


def test_only_whole_inserted_rows_are_recorded() -> None:
    """A file with other rows must be reduced anyway, and costs nothing more here."""
    assert told([("r", 1, 0), ("c", 2, 0), ("r", 5, 0)]) == (("1", "2"), ("5", "5"))
    for op in "udt":
        assert told([("r", 1, 0), (op, 7, 0)]) is None
        assert told([(op, 7, 0), ("r", 1, 0), ("r", 2, 0)]) is None


def test_it_is_the_key_s_first_column_that_counts() -> None:
    """The order of the key is not the order of the columns."""
    rows = [("r", 1, 1), ("r", 1, 2)]
    assert told(rows, ("id", "line")) is None
    assert told(rows, ("line", "id")) == (("1", "2"),)
    assert told(rows, ()) is None

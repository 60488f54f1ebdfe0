"""Queries against logs of random histories, compared with the fold in plain Python.

As in `test_random_histories.py`, each history has its own seed: `CDCFLOW_HISTORY_SEED=<seed> CDCFLOW_HISTORIES=1` runs
one alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import differences, make_table
from tests.support.tables.folds import Folded, Merged
from tests.support.tables.histories import Histories, History

from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.log.fold.fold import FoldedRow
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.query.row import text_of
from cdcflow.log.read.folder import FolderReader
from cdcflow.model.table import Table
from cdcflow.tables.local.current import LocalCurrent

SEED = int(os.environ.get("CDCFLOW_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
HISTORIES = int(os.environ.get("CDCFLOW_HISTORIES", "0")) or 25
ROUNDS = 4


@pytest.mark.spread(1)
@pytest.mark.parametrize("indexed", ["not at all", "by halves", "wholly"])
def test_row_at_any_offset_is_what_the_fold_has(indexed: str, tmp_path: Path) -> None:
    """Whatever is indexed: partial rows, key changes, truncates, restarted backfills, recreated tables, added and
    dropped columns; and compacted segments.
    """
    made = Histories(range(SEED, SEED + HISTORIES), HandLog(tmp_path / "log", has_transactions=True))
    layout = Layout(made.log.root)
    asked = ChangeLog(FolderReader(made.log.root), layout, LocalCurrent)
    chance = random.Random(SEED)
    for number in range(ROUNDS):
        made.write_round()
        if indexed == "wholly" or (indexed == "by halves" and number % 2 == 0):
            Indexing(layout).step()
        for history in made.listed:
            _check(history, asked, made.log.next_offset - 1, f"CDCFLOW_HISTORY_SEED={history.seed}")
    for history in made.listed:
        offset = chance.randrange(made.log.next_offset)
        _check(history, asked, offset, f"CDCFLOW_HISTORY_SEED={history.seed}")


def test_whole_table_at_any_offset_is_what_the_fold_has(tmp_path: Path) -> None:
    """At the ends of segments and within them, tables without a key among them."""
    made = Histories(range(SEED, SEED + HISTORIES), HandLog(tmp_path / "log", has_transactions=True))
    asked = ChangeLog(FolderReader(made.log.root), Layout(made.log.root), LocalCurrent)
    chance, compared = random.Random(SEED), 0
    for _ in range(ROUNDS):
        made.write_round()
        for history in made.listed:
            compared += _check_whole(history, asked, made.log.next_offset - 1, f"CDCFLOW_HISTORY_SEED={history.seed}")
    for history in made.listed:
        offset = chance.randrange(made.log.next_offset)
        compared += _check_whole(history, asked, offset, f"CDCFLOW_HISTORY_SEED={history.seed}")
    assert compared or HISTORIES < 10


def _check_whole(history: History, asked: ChangeLog, offset: int, told: str) -> bool:
    offset = asked.moment(offset).offset  # where that is inside a transaction, the end of the one before
    name = str(history.id)
    asked.now()
    standing = asked.known.standing(history.id, offset)
    written = [w for w in history.merged.log if standing.floor <= w[1].offset <= offset]
    if not standing.is_whole or not written:
        return False
    merged = Merged("current")
    merged.log = written
    merged.merge({"state": "done", "since": standing.floor})
    if merged.is_left_out or merged.folded is None or merged.folded.shape is None:
        return False  # a table cannot follow this
    if any(missing for _, missing, _, _ in merged.expected().values()):
        with pytest.raises(ConfigurationError, match="does not have all values of"):
            asked.current(name, as_of=offset)
        return True
    rows = asked.current(name, as_of=offset)
    shape = merged.folded.shape
    listed = [{**row, "_missing": None} for row in rows.to_pylist()]
    differ = differences(merged.expected(), merged.folded.actual(shape, listed))
    assert not differ, f"{told}, {name} at {offset}: {differ}"
    return True


def _check(history: History, asked: ChangeLog, offset: int, told: str) -> None:
    offset = asked.moment(offset).offset
    name = str(history.id)
    written = [w for w in history.merged.log if w[1].offset <= offset]
    if not written or not written[-1][0].key:
        return
    shape = written[-1][0]
    asked.now()
    floor = asked.known.standing(history.id, offset).floor
    if len({_key_numbers(s) for s, _ in written if s.incarnation == shape.incarnation}) > 1:
        return  # rows from before have another key
    folded = Folded()
    folded.add(w for w in written if w[1].offset >= floor)
    own = [(s, change) for s, change in written if s.incarnation == shape.incarnation]
    for key in {_key(s, change.values) for s, change in own if change.op != "t"}:
        found = asked.get(name, *key, as_of=offset)
        there = {_key(shape, _named(shape, row.values)): row for row in folded.rows.values()}.get(key)
        assert _said(found) == _expected(shape, there), f"{told}, key {key} of {name} at {offset}: {found}"


def _said(found: Any) -> Any:
    return None if found.values is None else ({n: str(v) for n, v in found.values.items()}, set(found.unknown))


def _expected(shape: Table, row: FoldedRow | None) -> Any:
    if row is None:
        return None
    names = {str(c.number): c.name for c in shape.columns}
    missing = {names[n] for n in row.missing if n in names}
    return {name: _text(shape, name, row.values.get(n)) for n, name in names.items() if name not in missing}, missing


def _text(shape: Table, name: str, value: Any) -> str:
    """The log gives a decimal its scale, and an earlier value the later type."""
    of = shape.row_schema.field(name).type
    return str(value if pa.types.is_string(of) else pa.scalar(value, of).as_py())


def _named(shape: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    return {c.name: values.get(str(c.number)) for c in shape.columns}


def _key_numbers(shape: Table) -> tuple[int, ...]:
    numbers = {c.name: c.number for c in shape.columns}
    return tuple(numbers[name] for name in shape.key)


def _key(shape: Table, values: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(text_of(values[name], shape.row_schema.field(name).type) for name in shape.key)


def test_point_in_time_before_a_backfill_had_read_all_does_not_claim_that_a_row_was_missing(tmp_path: Path) -> None:
    """The segment's end records that the backfill is done. Within the segment, that holds only after the last row that
    was read.
    """
    log = HandLog(tmp_path / "log", has_transactions=True)
    orders = make_table("orders", id="int64")
    log.state(orders)
    log.segment([*((orders, "r", {"id": n}) for n in (1, 2, 3)), (orders, "c", {"id": 4})])
    asked = ChangeLog(FolderReader(log.root), Layout(log.root), LocalCurrent)
    assert [asked.get("public.orders", 3, as_of=n).state for n in (1, 2, 3)] == ["not known", "not known", "there"]
    assert [asked.get("public.orders", 9, as_of=n).state for n in (2, 3, 4)] == [
        "not known",
        "never there",
        "never there",
    ]
    with pytest.raises(ConfigurationError, match="not all rows of the table are in the log at that point"):
        asked.current("public.orders", as_of=2)
    assert asked.current("public.orders", as_of=3).num_rows == 3


@pytest.mark.parametrize("indexed", [False, True])
def test_shape_that_reappears_in_a_segment_is_the_one_of_its_point_in_time(indexed: bool, tmp_path: Path) -> None:
    """Both shapes' files reach over the other one's rows."""
    log = HandLog(tmp_path / "log", has_transactions=True)
    wide, narrow = make_table("orders", id="int64", v="string"), make_table("orders", id="int64")
    log.state(wide)
    log.segment([(wide, "c", {"id": 1, "v": "a"}), (narrow, "c", {"id": 2}), (wide, "u", {"id": 1, "v": "b"})])
    log.segment([(narrow, "u", {"id": 2}), (wide, "u", {"id": 1, "v": "c"}), (narrow, "c", {"id": 3})])
    if indexed:
        Indexing(Layout(log.root)).step()
    asked = ChangeLog(FolderReader(log.root), Layout(log.root), LocalCurrent)
    has = [sorted(asked.get("public.orders", 1, as_of=n).values or ()) for n in range(1, 7)]
    assert has == [["id", "v"], ["id"], ["id", "v"], ["id"], ["id", "v"], ["id"]]

"""States of a log, of random histories: queries for what has expired answer as before, and tables are built from
states.

As in `test_random_histories.py`, each history has its own seed: `CDCFLOW_HISTORY_SEED=<seed> CDCFLOW_HISTORIES=1` runs
one alone.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.histories import Histories

from cdcflow.log.files import states
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.maintenance.snapshots_before_expiry import Keeping
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.query.row import text_of
from cdcflow.log.read.folder import FolderReader
from cdcflow.model.table import OFFSET, OP
from cdcflow.tables.local.current import LocalCurrent

SEED = int(os.environ.get("CDCFLOW_HISTORY_SEED", "0")) or random.SystemRandom().randrange(1, 10**8)
HISTORIES = int(os.environ.get("CDCFLOW_HISTORIES", "0")) or 20
ROUNDS = 4


def opened(root: Path) -> ChangeLog:
    return ChangeLog(FolderReader(root), Layout(root), LocalCurrent)


def listed(rows: Any) -> list[Any]:
    return sorted(str(row) for row in rows.to_pylist())


def counted(rows: Any) -> Counter[str]:
    """How often each row of a table without a key occurs. Which change's offset equal rows get depends on the columns
    that distinguished them when they were folded, as it does from merge to merge.
    """
    return Counter(str(row) for row in rows.drop_columns([OFFSET]).to_pylist())


@pytest.mark.long
def test_log_that_expires_after_states_answers_as_one_that_does_not(tmp_path: Path) -> None:
    """Whole tables and single rows, at offsets after the state, over several expiries."""
    made = Histories(range(SEED, SEED + HISTORIES), HandLog(tmp_path / "log", has_transactions=True))
    layout = Layout(made.log.root)
    chance, compared, kept = random.Random(SEED), 0, 0
    for number in range(ROUNDS):
        made.write_round()
        if number % 2:
            Indexing(layout).step()
        whole = tmp_path / f"whole {number}"
        shutil.copytree(made.log.root, whole, symlinks=True) if number == 0 else _copied(made.log.root, whole, tmp_path)
        if number == 0:
            continue
        segments = layout.segment_offsets()
        end = segments[chance.randrange(len(segments) - 1)][1]
        keeping = Keeping(opened(made.log.root), layout)
        found = keeping.keep(end)
        kept += len(found.tables)
        gone = LogRetention(layout).expire(ExpiryRule(last_offset_max=end, before_cut=made.log.cut))
        assert gone
        assert gone[-1].last_offset == end
        expired, other = opened(made.log.root), opened(whole)
        for history in made.listed:
            name = str(history.id)
            written = [w for w in history.merged.log if w[1].offset < made.log.next_offset]
            if not written:
                continue
            for offset in (made.log.next_offset - 1, chance.randrange(end, made.log.next_offset)):
                told = f"CDCFLOW_HISTORY_SEED={history.seed}, {name} at {offset}, state {end}"
                compared += _compare(name, offset, written, expired, other, told)
    assert (compared and kept) or HISTORIES < 10


def _copied(log: Path, whole: Path, room: Path) -> None:
    """The log with everything that expired in earlier rounds."""
    before = max(room.glob("whole *"), key=lambda path: int(path.name.split()[1]))
    shutil.copytree(before, whole)
    for path in (log / "segments").iterdir():
        if not (whole / "segments" / path.name).exists():
            shutil.copytree(path, whole / "segments" / path.name)
    shutil.copy(log / "schemas.json", whole / "schemas.json")


def _compare(name: str, offset: int, written: Any, expired: ChangeLog, other: ChangeLog, told: str) -> bool:
    other.now(), expired.now()
    id_ = written[-1][0].id
    standing = other.known.standing(id_, offset)
    if not standing.is_whole or not any(c.offset <= offset for _, c in written):
        return False
    try:
        expected = other.current(name, offset)
    except Exception:  # noqa: BLE001  a table that cannot follow its source
        return False
    if expired.known.standing(id_, offset).is_whole is False:
        assert "expired" in " ".join(expired.known.standing(id_, offset).notes), told
        return False  # it was not whole when the state was built
    _, shape = other.known.shapes(id_, offset)
    living = [*shape.row_schema.names, OFFSET]  # a column that was dropped before is not in a state
    now = expired.current(name, offset).select(living)
    if shape.key:
        assert listed(now) == listed(expected.select(living)), told
    else:
        assert counted(now) == counted(expected.select(living)), told
    if shape.key:
        types = [shape.row_schema.field(k).type for k in shape.key]
        for row in expected.to_pylist():
            key = [text_of(row[k], t) for k, t in zip(shape.key, types, strict=True)]
            assert expired.get(name, *key, as_of=offset).values == other.get(name, *key, as_of=offset).values, told
    return True


def test_state_is_in_the_logs_types_and_records_when_each_row_was_last_changed(tmp_path: Path) -> None:
    """An offset, a transaction and a time for each row, as the change itself had them."""
    made = Histories(range(SEED, SEED + 5), HandLog(tmp_path / "log", has_transactions=True))
    made.write_round()
    layout, asked = Layout(made.log.root), opened(made.log.root)
    end = layout.segment_offsets()[0][1]
    state = Keeping(asked, layout).keep(end)
    assert states.open_state(layout, end) == state
    for name, entry in state.tables.items():
        rows = states.rows(layout, state, name)
        assert (rows.schema, rows.num_rows) == (entry.table.log_schema, entry.rows)
        assert set(rows.column(OP).to_pylist()) <= {"r"}
        offsets = rows.column(OFFSET).to_pylist()
        if entry.table.key:
            assert len(set(offsets)) == len(offsets)
        assert all(offset <= end for offset in offsets)


@pytest.mark.parametrize("name", ["state.json", "parquet"])
def test_damaged_state_is_found(tmp_path: Path, name: str) -> None:
    log = HandLog(tmp_path / "log", has_transactions=True)
    orders = make_table("orders", id="int64", v="string")
    log.state(orders)
    log.segment([(orders, "c", {"id": n, "v": "a"}) for n in range(3)])
    log.segment([(orders, "c", {"id": 9, "v": "b"})])
    log.segment([(orders, "c", {"id": 10, "v": "b"})])
    layout = Layout(log.root)
    end = layout.segment_offsets()[0][1]
    Keeping(opened(log.root), layout).keep(end)
    LogRetention(layout).expire(ExpiryRule(last_offset_max=end, before_cut=3))
    assert opened(log.root).get("public.orders", 1).values == {"id": 1, "v": "a"}
    path = next(p for p in states.folder_of(layout, end).iterdir() if p.name.endswith(name))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(Exception, match=r"(?s)reading the state .*: it is damaged.*cdcflow table backfill TABLE"):
        opened(log.root).get("public.orders", 1)

"""Tables in mode history, merged without Spark: versions of rows, in both formats, against the oracle."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog, position_of, time_of
from tests.support.merge.histories import Step, make_table
from tests.support.versions.histories import make, split
from tests.support.versions.logs import versions, write
from tests.support.versions.tables import HISTORIES, rows, told

from cdcflow import local
from cdcflow.errors import CdcflowError
from cdcflow.model.table import Column
from cdcflow.model.types import ColumnType
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.policy import Policies, TablePolicy


@pytest.fixture
def hand_log(tmp_path: Path) -> HandLog:
    return HandLog(tmp_path / "log", has_transactions=True)


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", range(20))
def test_versions_in_a_table_are_those_of_the_oracle(
    seed: int, hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str
) -> None:
    """After every merge, also when some segments were compacted into one."""
    log = make(seed, blocks=20)
    transactions = {c.offset: c.transaction for c in log.changes(log.pieces)}
    merges = split(random.Random(seed), log.pieces)
    for number, pieces in enumerate(merges, start=1):
        write(hand_log, pieces)
        if seed % 3 == 0:
            hand_log.compact(len(pieces))
        report = merge(hand_log.root, warehouse, policies=HISTORIES)
        assert [t.left_out for t in report.tables] == [None]
        assert versions(rows(warehouse, format_name), transactions) == told(merges[:number])


def test_column_that_another_program_added_keeps_its_values(
    hand_log: HandLog,
    warehouse: Path,
    merge: Callable[..., MergeReport],
    format_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A version that ends is rewritten as a whole, with the columns that the log does not know."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "v": 0}) for n in (1, 2)])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    with closing(LocalEngine(warehouse, format_name)) as engine, closing(engine.table(("public", "orders"))) as there:
        there.snapshot()
        there.add(pa.schema([("mine", pa.string())]), {})
        there.snapshot()
        noted = there.rows().drop_columns("mine").append_column("mine", pa.array(["a", "b"]))
        there.replace(there.files(), noted.select(there.schema.names), {}, "", 0)
    hand_log.segment([(orders, "u", {"id": 1, "v": 1})])
    assert [t.left_out for t in merge(hand_log.root, warehouse, policies=HISTORIES).tables] == [None]
    found = {(row["id"], row["v"]): (row["mine"], row["_valid_to"]) for row in rows(warehouse, format_name, orders.id)}
    assert found == {(1, 0): ("a", 3), (1, 1): (None, None), (2, 0): ("b", None)}


# ── merges that are killed ──────────────────────────────────────────────────────────────────────────────────────

KILLED = """
import os, signal, sys
from cdcflow import local
from cdcflow.tables.local.deltalog import DeltaLog
from cdcflow.tables.local.engine import LocalCuts
from cdcflow.tables.local.iceberg import IcebergTable
from cdcflow.tables.merge.policy import Policies, TablePolicy

log, warehouse, format_name, left = *sys.argv[1:4], int(sys.argv[4])

def counted(right):
    def commit(*given, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return right(*given, **more)
    return commit

for of, method in [(IcebergTable, "create"), (IcebergTable, "_changing"), (DeltaLog, "commit"), (LocalCuts, "publish")]:
    setattr(of, method, counted(getattr(of, method)))
local.merge(log, warehouse, table_format=format_name, policies=Policies(TablePolicy("history")))
"""


def killed(log: HandLog, warehouse: Path, format_name: str, before: int) -> bool:
    """Whether a merge was killed before a commit of that number, or before it published. Otherwise it completed."""
    told = [sys.executable, "-c", KILLED, str(log.root), str(warehouse), format_name, str(before)]
    ended = subprocess.run(told, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0


@pytest.mark.long
def test_a_merge_that_is_killed_before_any_commit_is_finished_by_the_next(
    hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str
) -> None:
    """G10: SIGKILL, so that no cleanup runs. In one range a column is added with a default, versions end and begin, and
    the table is dropped and recreated, which is a separate commit: no version appears twice, none that ended before the
    default has it, and none of the old rows is open.
    """
    old = make_table("orders", id="int64", a="int32")
    b = Column("b", 3, ColumnType("int32", pa.int32()), missing="7")
    new = replace(old, columns=(*old.columns, b))
    again = replace(new, incarnation=2)
    hand_log.segment([(old, "c", {"id": 1, "a": 1}), (old, "c", {"id": 2, "a": 1}), (old, "u", {"id": 1, "a": 2})])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    hand_log.segment([(new, "u", {"id": 2, "a": 3, "b": 8}), (new, "d", {"id": 1}), (again, "c", {"id": 2, "a": 4})])
    deaths = 0
    while killed(hand_log, warehouse, format_name, deaths):
        deaths += 1
    assert deaths > 4, "it had fewer commits than its range has parts"
    merge(hand_log.root, whole := warehouse.with_name("in one go"), policies=HISTORIES)
    found, expected = ([dict(r) for r in rows(place, format_name, old.id)] for place in (warehouse, whole))
    by_start = itemgetter("_valid_from")
    assert sorted(found, key=by_start) == sorted(expected, key=by_start)
    assert ends(found, "id", "a", "b") == [
        (1, True, 3, True, 1, 1, None),
        (2, True, 4, True, 2, 1, 7),
        (3, True, 5, True, 1, 2, 7),
        (4, True, 6, False, 2, 3, 8),
        (6, True, None, None, 2, 4, None),
    ]
    assert local.read_cut(warehouse, incomplete=True)["public.orders"].num_rows == 5


# ── updates that change no row ────────────────────────────────────────────────────────────────────────────────


def ends(found: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    """Of each version its ends, whether they are exact, and these columns."""
    told_of = ("_valid_from", "_valid_from_exact", "_valid_to", "_valid_to_exact")
    listed = [tuple(row[c] for c in (*told_of, *columns)) for row in found]
    return sorted(listed, key=lambda row: row[0])


def test_a_sweep_ends_what_a_backfill_did_not_find(
    hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str
) -> None:
    """Also a sweep that ends when no change has arrived since: the row was deleted somewhere before the
    backfill began.
    """
    orders = make_table("orders", id="int64", a="int32")
    hand_log.segment([(orders, "c", {"id": 1, "a": 1}), (orders, "c", {"id": 2, "a": 1})])
    hand_log.state(orders, "reading", 2, 3)
    hand_log.segment([(orders, "r", {"id": 1, "a": 1})])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    hand_log.state(orders, "done", 2, 3)
    hand_log.segment([])
    report = merge(hand_log.root, warehouse, policies=HISTORIES)
    found = rows(warehouse, format_name, orders.id)
    assert ends(found, "id", "a") == [(1, True, None, None, 1, 1), (2, True, 3, False, 2, 1)]
    (gone,) = [row for row in found if row["id"] == 2]
    assert (gone["_valid_to_position"], gone["_valid_to_time"]) == (position_of(3), time_of(3))
    assert [t.complete for t in report.tables] == [True]


@pytest.mark.parametrize("in_one_go", [False, True])
def test_what_an_empty_backfill_ends_has_a_position_and_a_time(
    hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str, *, in_one_go: bool
) -> None:
    """The backfill began after the log's last row, and found nothing: the rows had been deleted when the latest
    transaction arrived. A version whose end has no time is in no answer for a point in time.
    """
    orders = make_table("orders", id="int64", a="int32")
    hand_log.segment([(orders, "c", {"id": 1, "a": 1}), (orders, "c", {"id": 2, "a": 1})])
    if not in_one_go:
        merge(hand_log.root, warehouse, policies=HISTORIES)
    hand_log.state(orders, "done", 2, 4)
    hand_log.segment([(make_table("beside", id="int64"), "c", {"id": 1})])
    shown = local.read_live(hand_log.root, warehouse, policies=HISTORIES)["public.orders"].to_pylist()
    merge(hand_log.root, warehouse, policies=HISTORIES)
    found = rows(warehouse, format_name, orders.id)
    assert ends(found, "id") == [(1, True, 4, False, 1), (2, True, 4, False, 2)]
    assert {(r["_valid_to_position"], r["_valid_to_time"]) for r in found} == {(position_of(3), time_of(3))}
    assert sorted(shown, key=lambda r: r["id"]) == sorted(found, key=lambda r: r["id"])


def test_added_column_gives_its_default_to_open_versions(
    hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str
) -> None:
    """The source did so without a change. Versions that had ended did not get it, however merges cut the log."""
    old = make_table("orders", id="int64", a="int32")
    b = Column("b", 3, ColumnType("int32", pa.int32()), missing="7")
    new = replace(old, columns=(*old.columns, b))
    segments: list[list[Step]] = [
        [(old, "c", {"id": 1, "a": 1}), (old, "c", {"id": 2, "a": 1}), (old, "u", {"id": 1, "a": 2})],
        [(old, "u", {"id": 2, "a": 2}), (new, "u", {"id": 2, "a": 3, "b": 8}), (new, "d", {"id": 1})],
    ]
    expected = [(1, 1, None), (2, 1, None), (3, 2, 7), (4, 2, 7), (5, 3, 8)]
    for segment in segments:
        hand_log.segment(segment)
        merge(hand_log.root, warehouse, policies=HISTORIES)
    merge(hand_log.root, warehouse.with_name("in one go"), policies=HISTORIES)
    for place in (warehouse, warehouse.with_name("in one go")):
        found = rows(place, format_name, old.id)
        assert sorted((r["_valid_from"], r["a"], r["b"]) for r in found) == expected


def test_columns_are_renamed_and_dropped_ones_stay(
    hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str
) -> None:
    """What a row had in a column then is part of what it was."""
    old = make_table("orders", id="int64", a="int32", b="int32")
    new = replace(old, columns=(old.columns[0], replace(old.columns[1], name="amount")))
    hand_log.segment([(old, "c", {"id": 1, "a": 1, "b": 5})])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    hand_log.segment([(new, "u", {"id": 1, "amount": 2})])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    found = rows(warehouse, format_name, old.id)
    assert sorted((r["_valid_from"], r["amount"], r["b"]) for r in found) == [(1, 1, 5), (2, 2, None)]


@pytest.mark.parametrize("in_one_go", [False, True])
def test_versions_of_a_recreated_table_stay(
    hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str, *, in_one_go: bool
) -> None:
    """The old table's rows end where the new one's first row is; the log does not contain the time of the drop."""
    old = make_table("orders", id="int64", a="int32")
    new = replace(old, incarnation=2)
    segments: list[list[Step]] = [
        [(old, "c", {"id": 1, "a": 1}), (old, "u", {"id": 1, "a": 2}), (old, "c", {"id": 2, "a": 1})],
        [(old, "d", {"id": 2}), (new, "c", {"id": 1, "a": 3})],
    ]
    for segment in segments:
        hand_log.segment(segment)
        if not in_one_go:
            merge(hand_log.root, warehouse, policies=HISTORIES)
    merge(hand_log.root, warehouse, policies=HISTORIES)
    assert ends(rows(warehouse, format_name, old.id), "id", "a") == [
        (1, True, 2, True, 1, 1),
        (2, True, 5, False, 1, 2),
        (3, True, 4, True, 2, 1),
        (5, True, None, None, 1, 3),
    ]


def test_first_row_of_a_recreated_table_has_no_values_of_the_old_one(
    hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str
) -> None:
    """An update without one column, of a row that was not read yet: it was taken for an update of the old row with that
    key, and its version then had that row's value.
    """
    old = make_table("orders", id="int64", a="int32", doc="string")
    hand_log.segment([(old, "c", {"id": 1, "a": 1, "doc": "old"})])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    hand_log.segment([(replace(old, incarnation=2), "u", {"id": 1, "a": 2, "_unchanged": ["doc"]})])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    found = rows(warehouse, format_name, old.id)
    assert ends(found, "doc", "_missing") == [(1, True, 2, False, "old", None), (2, True, None, None, None, ["doc"])]


def test_rebuilt_history_is_swept_again(
    hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str
) -> None:
    """Its folder was moved away, and it begins where the log does: before a backfill that had swept the old one. Rows
    that the backfill did not find stayed open permanently.
    """
    orders, beside = make_table("orders", id="int64", a="int32"), make_table("beside", id="int64")
    hand_log.segment([(orders, "c", {"id": 1, "a": 1}), (orders, "c", {"id": 2, "a": 1})])
    hand_log.state(orders, "done", 2, 3)
    hand_log.segment([(orders, "r", {"id": 1, "a": 1}), (beside, "c", {"id": 1})])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    before = rows(warehouse, format_name, orders.id)
    warehouse.joinpath("public", "orders").rename(warehouse / "moved away")
    hand_log.segment([(beside, "c", {"id": 2})])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    assert ends(before, "id") == [(1, True, None, None, 1), (2, True, 3, False, 2)]
    assert ends(rows(warehouse, format_name, orders.id), "id") == ends(before, "id")


def test_history_of_a_table_without_a_key_is_refused_with_an_error_that_names_it(
    hand_log: HandLog, warehouse: Path
) -> None:
    """A change could not be assigned to a row. The remedy is to keep its changes."""
    events = make_table("events", key=(), a="int32")
    hand_log.segment([(events, "c", {"a": 1})])
    with pytest.raises(CdcflowError, match=r"public\.events .*mode history: it has no key") as error:
        local.merge(hand_log.root, warehouse, policies=HISTORIES)
    assert "give it mode current or append" in str(error.value)
    remedy = Policies(HISTORIES.others, {"public.events": TablePolicy("append")})
    assert local.merge(hand_log.root, warehouse, policies=remedy).published


def test_offsets_have_the_names_of_auto_cdc_on_request(
    hand_log: HandLog, warehouse: Path, merge: Callable[..., MergeReport], format_name: str
) -> None:
    """And keep them: a table's names do not change with the settings."""
    orders = make_table("orders", id="int64", a="int32")
    asked = Policies(TablePolicy("history", "auto_cdc"))
    hand_log.segment([(orders, "c", {"id": 1, "a": 1})])
    merge(hand_log.root, warehouse, policies=asked)
    hand_log.segment([(orders, "u", {"id": 1, "a": 2})])
    merge(hand_log.root, warehouse, policies=HISTORIES)
    found = sorted((r["__START_AT"], r["__END_AT"], r["a"]) for r in rows(warehouse, format_name, orders.id))
    assert found == [(1, 2, 1), (2, None, 2)]
    hand_log.segment([(orders, "u", {"id": 1, "a": 3})])
    with pytest.raises(CdcflowError, match="it was created with mode history and history_columns auto_cdc"):
        merge(hand_log.root, warehouse, policies=Policies(TablePolicy("history", "cdcflow")))

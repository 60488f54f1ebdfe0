"""What the rows of a table are: set once in the settings, never changed silently, and refused with a remedy."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.log.files.layout import Layout
from cdcflow.model.table import Table
from cdcflow.tables.formats import format_in
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.engine import LocalCuts, LocalEngine
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy
from cdcflow.tables.paths import table_path

Merge = Callable[..., MergeReport]

ORDERS = make_table("orders", id="int64", v="string")
BESIDE = make_table("beside", id="int64")


def all_in(mode: Mode | None) -> Policies:
    return Policies(TablePolicy(mode))


def rows_of(warehouse: Path, table: Table) -> list[dict[str, Any]]:
    """The rows of a table in the order of their offsets."""
    with closing(LocalEngine(warehouse, format_in(warehouse) or "delta")) as engine:
        there = engine.table(table_path(table.id))
        assert there.snapshot() is not None
        found: list[dict[str, Any]] = there.rows().sort_by("_offset").to_pylist()
        return found


def shown(rows: Iterable[Mapping[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[c] for c in columns) for row in rows]


def move_away(warehouse: Path, table: Table) -> None:
    folder = warehouse.joinpath(*table_path(table.id))
    folder.rename(folder.with_name("moved away"))


def settings_of(remedy: str, folder: Path) -> Policies:
    """The settings that a remedy requests, read from a settings file."""
    (said,) = re.findall(r"merge\.tables\.each: (\{.*?\}\})", remedy)
    file = folder / "cdcflow.yaml"
    source = {"kind": "postgres", "url": "postgresql://me@localhost/shop"}
    tables = {"each": yaml.safe_load(said)}
    file.write_text(yaml.safe_dump({"source": source, "log": {"path": "log"}, "merge": {"tables": tables}}))
    return wiring.policies(load(file))


@pytest.fixture
def log(hand_log: HandLog) -> HandLog:
    """Two tables, one of which has a row that was changed and one that was deleted."""
    hand_log.state(ORDERS)
    hand_log.state(BESIDE)
    hand_log.segment(
        [
            *((ORDERS, "c", {"id": n, "v": "old"}) for n in (1, 2)),
            (ORDERS, "u", {"id": 1, "v": "new"}),
            (ORDERS, "d", {"id": 2}),
            (BESIDE, "c", {"id": 1}),
        ]
    )
    return hand_log


def test_each_mode_shows_what_its_page_promises(merge: Merge, log: HandLog, tmp_path: Path) -> None:
    """docs/tables.md: columns and rows of each mode."""
    kept, changes = tmp_path / "kept", tmp_path / "changes"
    merge(log.root, kept, policies=all_in("soft_delete"))
    log.segment([(ORDERS, "u", {"id": 1, "_unchanged": ["v"]}), (ORDERS, "t", {}), (ORDERS, "d", {"id": 7})])
    merge(log.root, kept, policies=all_in("soft_delete"))
    merge(log.root, changes, policies=all_in("append"))
    assert shown(rows_of(kept, ORDERS), "id", "v", "_offset", "_missing", "_is_deleted") == [
        (2, "old", 4, None, True),
        (1, "new", 7, None, True),
        (7, None, 8, ["v"], True),
    ]
    assert shown(rows_of(changes, ORDERS), "id", "v", "_op", "_offset", "_txn", "_unchanged") == [
        (1, "old", "c", 1, 1, None),
        (2, "old", "c", 2, 2, None),
        (1, "new", "u", 3, 3, None),
        (2, None, "d", 4, 4, None),
        (1, None, "u", 6, 6, ["v"]),
        (None, None, "t", 7, 7, None),
        (7, None, "d", 8, 8, None),
    ]


def test_a_row_that_was_deleted_before_anything_was_known_of_it_is_not_missing(
    merge: Merge, log: HandLog, warehouse: Path
) -> None:
    """A table is complete with it: its values will never arrive."""
    partial = {"id": 3, "_unchanged": ["v"]}
    log.segment([(ORDERS, "u", partial), (ORDERS, "d", {"id": 3}), (ORDERS, "d", {"id": 9})])
    report = merge(log.root, warehouse, policies=all_in("soft_delete"))
    assert [t.complete for t in report.tables] == [True, True]
    assert shown(rows_of(warehouse, ORDERS), "id", "_missing") == [(1, None), (2, None), (3, ["v"]), (9, ["v"])]


@pytest.mark.parametrize("mode", ["append", "history"])
def test_existing_rows_keep_their_columns_where_a_new_table_s_names_return(
    merge: Merge, hand_log: HandLog, warehouse: Path, mode: Mode
) -> None:
    """In one range, the table is recreated and two of its columns swap their names and swap them back. Rows of the old
    one had their values under each other's name.
    """
    old, new = (make_table("orders", incarnation=n, id="int64", a="string", b="string") for n in (1, 2))
    swapped = make_table("orders", incarnation=2, id="int64", b="string", a="string")
    hand_log.state(old)
    hand_log.segment([(old, "c", {"id": 1, "a": "A", "b": "B"})])
    merge(hand_log.root, warehouse, policies=all_in(mode))
    changes = (new, "c", 2), (swapped, "c", 3), (new, "c", 4)
    hand_log.segment([(table, op, {"id": n, "a": "A", "b": "B"}) for table, op, n in changes])
    merge(hand_log.root, warehouse, policies=all_in(mode))
    found = sorted(shown(rows_of(warehouse, new), "id", "a", "b"))
    assert found == [(1, "A", "B"), (2, "A", "B"), (3, "B", "A"), (4, "A", "B")]


def test_table_keeps_its_mode_where_the_settings_have_none(merge: Merge, log: HandLog, warehouse: Path) -> None:
    """What a table's rows are does not change because a line went from a file."""
    merge(log.root, warehouse, policies=Policies(each={"public.orders": TablePolicy("append")}))
    log.segment([(ORDERS, "u", {"id": 1, "v": "newer"}), (BESIDE, "d", {"id": 1})])
    merge(log.root, warehouse)
    assert shown(rows_of(warehouse, ORDERS)[-1:], "_op", "id", "v") == [("u", 1, "newer")]
    assert rows_of(warehouse, BESIDE) == []


@pytest.mark.parametrize("remedy", ["anew", "set back"])
def test_both_remedies_of_a_mode_that_is_not_the_tables_work_to_the_letter(
    merge: Merge, log: HandLog, warehouse: Path, remedy: str
) -> None:
    """The table is skipped, with an error that names it, and unchanged; the other one is merged."""
    each = Policies(each={"public.orders": TablePolicy("soft_delete")})
    merge(log.root, warehouse)
    log.segment([(ORDERS, "c", {"id": 3, "v": "x"}), (BESIDE, "c", {"id": 2})])
    report = merge(log.root, warehouse, policies=each)
    (why,) = (t.left_out for t in report.tables if t.left_out)
    assert "table public.orders cannot be merged with mode soft_delete: it was created with mode current" in why
    assert len(rows_of(warehouse, ORDERS)) == 1

    if remedy == "set back":
        merge(log.root, warehouse, policies=settings_of(why, warehouse.parent))
        assert shown(rows_of(warehouse, ORDERS), "id") == [(1,), (3,)]
        return
    assert "move the table's folder away" in why
    move_away(warehouse, ORDERS)
    log.state(ORDERS, "done", 2, since=log.next_offset, whole_since=log.next_offset)
    log.segment([(ORDERS, "r", {"id": 1, "v": "new"}), (ORDERS, "r", {"id": 3, "v": "x"})])
    log.segment([(ORDERS, "d", {"id": 3})])
    assert merge(log.root, warehouse, policies=each).published
    assert shown(rows_of(warehouse, ORDERS), "id", "_is_deleted") == [(1, False), (3, True)]


def test_the_remedy_for_a_table_without_a_key_works_to_the_letter(merge: Merge, log: HandLog, warehouse: Path) -> None:
    """Its deleted rows could not be distinguished; no part of the table had been created yet."""
    bag = make_table("bag", key=(), a="int64")
    log.state(bag)
    log.segment([(bag, "c", {"a": 1}), (bag, "c", {"a": 1}), (bag, "d", {"a": 1})])
    (why,) = (t.left_out for t in merge(log.root, warehouse, policies=all_in("soft_delete")).tables if t.left_out)
    assert "table public.bag cannot be merged with mode soft_delete: it has no key" in why
    said = settings_of(why, warehouse.parent)
    assert merge(log.root, warehouse, policies=Policies(TablePolicy("soft_delete"), said.each)).published
    assert shown(rows_of(warehouse, bag), "a") == [(1,)]
    elsewhere = warehouse.with_name("elsewhere")
    merge(log.root, elsewhere, policies=all_in("append"))
    assert shown(rows_of(elsewhere, bag), "_op", "a") == [("c", 1), ("c", 1), ("d", 1)]


def test_a_source_column_named_like_the_mark_is_refused_in_that_mode_only(
    merge: Merge, log: HandLog, warehouse: Path
) -> None:
    """One column cannot be both; a table that needs no mark takes it."""
    marked = make_table("marked", id="int64", _is_deleted="bool")
    log.segment([(marked, "c", {"id": 1, "_is_deleted": True})])
    report = merge(log.root, warehouse, policies=all_in("soft_delete"))
    (why,) = (t.left_out for t in report.tables if t.left_out)
    assert "column _is_deleted has a name" in why
    merge(log.root, warehouse, policies=Policies(each={"public.marked": TablePolicy("current")}))
    assert shown(rows_of(warehouse, marked), "id", "_is_deleted") == [(1, True)]


def test_settings_of_a_table_that_the_log_does_not_have_are_reported(
    merge: Merge, log: HandLog, warehouse: Path
) -> None:
    """With a typo in its name a table would be in another mode than its owner believes."""
    with structlog.testing.capture_logs() as said:
        merge(log.root, warehouse, policies=Policies(each={"public.oders": TablePolicy("append")}))
    assert [e["table"] for e in said if e["event"] == "settings name a table of which the log has no row"] == [
        "public.oders"
    ]


def test_the_remedy_of_changes_that_expired_before_they_were_appended_works_to_the_letter(
    merge: Merge, log: HandLog, warehouse: Path
) -> None:
    """A table of all changes that lacks some without reporting it would be trusted."""
    merge(log.root, warehouse, policies=all_in("append"))
    log.segment([(ORDERS, "u", {"id": 1, "v": "missed"})])
    log.segment([(ORDERS, "u", {"id": 1, "v": "newest"}), (BESIDE, "c", {"id": 2})])
    layout = Layout(log.root)
    for segment in layout.segment_offsets()[:2]:
        shutil.rmtree(layout.segment(*segment))
    # A backfill would suffice for a table of rows, but brings no change.
    for table in (ORDERS, BESIDE):
        log.state(table, "done", 2, since=log.next_offset, whole_since=log.next_offset)
    log.segment([(ORDERS, "r", {"id": 1, "v": "newest"}), (BESIDE, "r", {"id": 2})])
    with pytest.raises(Exception, match="the table would lack them") as refused:
        merge(log.root, warehouse, policies=all_in("append"))
    assert "move the table's folder away" in str(refused.value)
    for table in (ORDERS, BESIDE):
        shutil.rmtree(warehouse.joinpath(*table_path(table.id)))
    report = merge(log.root, warehouse, policies=all_in("append"))
    assert report.published
    assert [t.complete for t in report.tables] == [True, True]
    assert shown(rows_of(warehouse, ORDERS), "_op", "v") == [("u", "newest"), ("r", "newest")]


def test_a_new_table_of_changes_has_all_that_the_log_has(merge: Merge, log: HandLog, warehouse: Path) -> None:
    """Also the changes before the latest backfill, which a table of rows does not need."""
    log.state(ORDERS, "done", 2, since=log.next_offset, whole_since=log.next_offset)
    log.segment([(ORDERS, "r", {"id": 1, "v": "new"})])
    merge(log.root, warehouse, policies=all_in("append"))
    assert shown(rows_of(warehouse, ORDERS), "_op") == [("c",), ("c",), ("u",), ("d",), ("r",)]


def test_changes_of_floating_point_numbers_without_a_key_are_appended_without_spark(
    merge: Merge, log: HandLog, warehouse: Path
) -> None:
    """Nothing is compared, so 0.0 and -0.0 need not be distinguished; and no default is written into a row."""
    bag = make_table("bag", key=(), a="float64")
    grown = make_table("bag", key=(), a="float64", b="date32", missing={"b": "2024-01-01"})
    log.segment([(bag, "c", {"a": 0.0}), (bag, "c", {"a": -0.0})])
    log.segment([(grown, "d", {"a": 0.0, "b": None})])
    assert merge(log.root, warehouse, policies=all_in("append")).published
    found = [(op, str(a), b) for op, a, b in shown(rows_of(warehouse, bag), "_op", "a", "b")]
    assert found == [("c", "0.0", None), ("c", "-0.0", None), ("d", "0.0", None)]


def test_files_of_appended_changes_do_not_grow_in_number_indefinitely(
    merge: Merge, log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each merge writes a file; it also compacts small ones into one."""
    monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 3)
    for n in range(6):
        log.segment([(ORDERS, "c", {"id": 10 + n, "v": "x"})])
        merge(log.root, warehouse, policies=all_in("append"))
    with closing(LocalEngine(warehouse, format_in(warehouse) or "delta")) as engine:
        there = engine.table(table_path(ORDERS.id))
        there.snapshot()
        assert len(there.files()) <= 4
    assert len(rows_of(warehouse, ORDERS)) == 10


def test_a_merge_that_dies_before_it_publishes_appends_nothing_twice(
    merge: Merge, log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10, G11: changes and position are one commit."""
    with monkeypatch.context() as patch:

        def dies(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(LocalCuts, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            merge(log.root, warehouse, policies=all_in("append"))
    assert merge(log.root, warehouse, policies=all_in("append")).published
    assert shown(rows_of(warehouse, ORDERS), "_offset") == [(1,), (2,), (3,), (4,)]

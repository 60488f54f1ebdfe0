"""`cdcflow log expire --state`, `cdcflow rebuild`, and retention that keeps a state: what expired is not lost."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.kill.disk_layer import DyingLayer, Killed
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from typer.testing import CliRunner

import cdcflow
from cdcflow import local, wiring
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.log.files import notes, states
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.snapshots_before_expiry import Keeping

SETTINGS = """
source: {kind: postgres, url: 'postgresql://nobody@127.0.0.1/shop'}
log: {path: cdcflow-log, retention: {age: 1s, keep_for: [], state: true}}
merge: {warehouse: warehouse, engine: local}
"""
ORDERS = make_table("orders", id="int64", v="string")
EMPTIED = make_table("emptied", id="int64")
runner = CliRunner()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandLog:
    """Three segments: rows, changes that leave a column out, and a table whose rows have all gone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cdcflow.yaml").write_text(SETTINGS)
    made = HandLog(tmp_path / "cdcflow-log", has_transactions=True)
    for table in (ORDERS, EMPTIED):
        made.state(table)
    made.segment([*((ORDERS, "r", {"id": n, "v": f"v{n}"}) for n in range(1, 6)), (EMPTIED, "c", {"id": 1})])
    made.segment([(ORDERS, "u", {"id": 2, "_unchanged": ["v"]}), (ORDERS, "d", {"id": 3}), (EMPTIED, "d", {"id": 1})])
    made.segment([(ORDERS, "u", {"id": 4, "v": "new"})])
    return made


def run(*command: str, code: int = 0) -> str:
    found = runner.invoke(app, list(command))
    assert found.exit_code == code, found.output
    return found.output


def merged(folder: str) -> dict[str, list[Mapping[str, Any]]]:
    found = local.read_cut(folder)
    return {name: sorted(rows.select(["id"]).to_pylist(), key=str) for name, rows in found.items()}


def values(folder: str) -> dict[int, str]:
    rows = local.read_cut(folder, tables=["public.orders"])["public.orders"]
    return dict(zip(rows.column("id").to_pylist(), rows.column("v").to_pylist(), strict=True))


EXPECTED = {1: "v1", 2: "v2", 4: "new", 5: "v5"}


def test_warehouse_is_rebuilt_from_a_log_whose_beginning_has_expired_and_a_merge_continues(log: HandLog) -> None:
    """Every daemon is off, and the database is not queried: the state, and what was logged since."""
    run("log", "expire", "--before-cut", "3", "--state")
    assert states.state_offsets(Layout(log.root)) == [9]
    text = run("rebuild", "--into", "anew")
    assert "set merge.warehouse to anew" in text
    assert values("anew") == EXPECTED
    assert merged("anew")["public.emptied"] == []
    log.segment([(ORDERS, "c", {"id": 6, "v": "later"}), (EMPTIED, "c", {"id": 7})])
    Path("cdcflow.yaml").write_text(SETTINGS.replace("warehouse: warehouse", "warehouse: anew"))
    run("merge")
    assert values("anew") == EXPECTED | {6: "later"}
    assert merged("anew")["public.emptied"] == [{"id": 7}]
    other = run("rebuild", "--into", "anew", code=78)
    assert "it already has tables" in other
    assert "name a new warehouse with --into" in other
    run("rebuild", "--into", "third")
    assert values("third") == values("anew")


def test_warehouse_is_rebuilt_from_a_log_that_has_everything(log: HandLog) -> None:
    run("rebuild")
    assert values("warehouse") == EXPECTED


def test_rows_from_before_the_state_are_found_by_every_question(log: HandLog) -> None:
    """With the change that gave each of them its values."""
    run("log", "expire", "--before-cut", "3", "--state")
    asked = cdcflow.open(log.root)
    found = asked.get("public.orders", 2)
    assert (found.values, found.last and found.last.offset, found.notes) == ({"id": 2, "v": "v2"}, 7, ())
    assert asked.get("public.orders", 3).state == "never there"
    assert asked.get("public.orders", 1, as_of=9).values == {"id": 1, "v": "v1"}
    assert sorted(asked.current("public.orders").column("id").to_pylist()) == sorted(EXPECTED)
    assert asked.current("public.emptied").num_rows == 0
    changed = asked.diff("public.orders", 9).found
    assert [(d.key, d.before, d.after) for d in changed] == [(("4",), {"id": 4, "v": "v4"}, {"id": 4, "v": "new"})]
    assert asked.history("public.orders", 2).notes == ("the log begins at offset 10: what was before has expired",)


def test_table_that_is_not_whole_is_not_expired_silently(log: HandLog) -> None:
    """The remedies: expire less, wait, or accept the loss of its rows."""
    log.state(ORDERS, "reading", 1, 1)
    log.segment([(EMPTIED, "c", {"id": 8})])
    log.segment([(EMPTIED, "c", {"id": 9})])
    text = run("log", "expire", "--before-cut", "5", "--state", code=78)
    assert "public.orders: not all rows of the table are in the log at that point (state: reading)" in text
    assert Layout(log.root).log_file().first_offset == 1
    run("log", "expire", "--before-cut", "3", "--state")
    run("log", "expire", "--before-cut", "5")
    assert cdcflow.open(log.root).get("public.orders", 1).state == "not known"


def test_retention_keeps_a_state_first_or_waits(log: HandLog) -> None:
    """`log.retention.state`: automatically, next to the daemon; only one state exists at a time."""
    told: list[tuple[str, Any]] = []
    log.segment([(EMPTIED, "c", {"id": 8})])
    expiring = wiring.expiring(load(Path("cdcflow.yaml")), lambda event, fields: told.append((event, dict(fields))))
    assert expiring is not None
    expiring.step()
    first = Layout(log.root).log_file().first_offset
    assert [event for event, _ in told] == ["log expired"]
    assert states.state_offsets(Layout(log.root)) == [first - 1]
    log.segment([(EMPTIED, "c", {"id": 9})])
    expiring.step()
    assert states.state_offsets(Layout(log.root)) == [Layout(log.root).log_file().first_offset - 1] != [first - 1]
    assert cdcflow.open(log.root).get("public.orders", 2).values == {"id": 2, "v": "v2"}
    log.state(ORDERS, "reading", 2, log.next_offset)
    log.segment([(ORDERS, "r", {"id": 1, "v": "again"})])
    log.segment([(EMPTIED, "c", {"id": 10})])
    expiring.step()
    assert told[-1][0] == "retention waits"
    assert "log.retention.state cannot keep all tables. public.orders: not all rows" in told[-1][1]["reason"]


@pytest.mark.long
def test_state_counts_as_a_whole_or_not_at_all_wherever_its_writer_is_killed(log: HandLog, tmp_path: Path) -> None:
    layout, deaths = Layout(log.root), 0
    for acts in range(400):
        shutil.rmtree(states.folder(layout), ignore_errors=True)
        try:
            Keeping(cdcflow.open(log.root), layout, DyingLayer(acts)).keep(9)
        except Killed:
            deaths += 1
        else:
            break
        assert states.state_offsets(layout) in ([], [9])
        Keeping(cdcflow.open(log.root), layout).keep(9)
        assert states.rows(layout, states.open_state(layout, 9), "public.orders").num_rows == 4
    assert deaths > 10


def test_tables_that_keep_changes_are_not_built_from_a_state(log: HandLog) -> None:
    run("log", "expire", "--before-cut", "3", "--state")
    kept = "engine: local, tables: {each: {public.orders: {mode: history}}}"
    Path("cdcflow.yaml").write_text(SETTINGS.replace("engine: local", kept))
    text = run("rebuild", code=78)
    assert "public.orders have a mode that keeps changes" in text
    assert notes.all_of(Layout(log.root), "merge") == []

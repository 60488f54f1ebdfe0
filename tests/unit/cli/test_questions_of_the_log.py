"""`cdcflow get`, `history`, `range`, `diff`, `transaction`, `log index`: their output for users and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import BEFORE, OP, UNCHANGED
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, PRODUCTS, Writer, changes, transactions

runner = CliRunner()
NAME = str(ORDERS.id)
DONE = {"tables": {NAME: {"state": "done", "generation": 1, "since": 1, "whole_since": 1}}}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Order 17 is inserted, is changed along with another table's row, and gets another key."""
    monkeypatch.chdir(tmp_path)
    opened = FileLog.open(tmp_path / "cdcflow-log", SourceIdentity("postgres", "7301", "shop", "1"))
    writer = Writer.of(opened)
    writer.checkpoint = replace(writer.checkpoint, progress=DONE)
    writer.put(
        transactions([1], [2], changes(ORDERS, [{"id": 17, "note": "new"}, {"id": 18, "note": None}])),
        transactions(
            [2],
            [2],
            changes(ORDERS, [{"id": 17, "note": "paid", OP: "u"}]),
            changes(PRODUCTS, [{"id": 4, "picture": b"\0\xff", OP: "c"}], [1]),
        ),
    )
    opened.roll()
    opened.seal_pending()
    moved = {"id": 99, OP: "c", UNCHANGED: ["note"], BEFORE: {"id": 17}}
    writer.put(transactions([3], [2], changes(ORDERS, [{"id": 17, OP: "d"}, moved])))
    opened.close()
    return tmp_path / "cdcflow-log"


def said(*command: str) -> str:
    found = runner.invoke(app, [*command, "--log", "cdcflow-log"])
    assert found.exit_code == 0, found.output
    return found.output


def told(*command: str) -> Any:
    return json.loads(said(*command, "--json"))


def test_row_is_shown_now_and_at_a_given_position(log: Path) -> None:
    text = said("get", NAME, "17", "--as-of", "0/2")
    assert text.splitlines() == [
        "shop.orders 17, as of offset 4",
        "  id: 17",
        "  note: paid",
        "  by update at offset 3, transaction 2, 2023-11-14T22:13:20.000000Z",
    ]
    assert "deleted\n  by delete at offset 5, transaction 3" in said("get", NAME, "17")
    assert "note: paid" in said("get", NAME, "99")
    assert "note: NULL" in said("get", NAME, "18")
    assert "never there" in said("get", NAME, "4711")
    found = told("get", NAME, "99")
    assert (found["values"], found["state"], found["last"]["unchanged"]) == (
        {"id": 99, "note": "paid"},
        "there",
        ["note"],
    )


def test_history_of_a_row(log: Path) -> None:
    lines = said("history", NAME, "17").splitlines()
    assert [line.split()[0] for line in lines] == ["insert", "delete", "update", "insert"]
    assert lines[0].endswith("shop.orders: id=99 note=(unchanged) was id=17")
    assert said("history", NAME, "17", "--limit", "2").splitlines()[-1] == "there are older ones: --before 5"
    assert said("history", NAME, "17", "--before", "5").splitlines() == lines[2:]
    assert [change["op"] for change in told("history", NAME, "17")["changes"]] == ["c", "d", "u", "c"]
    assert "no change of this row" in said("history", NAME, "5")


def test_transaction_with_everything_in_it(log: Path) -> None:
    lines = said("transaction", "2").splitlines()
    assert lines[0] == "transaction 2 (id 2), committed 2023-11-14T22:13:20.000000Z, position 0/2"
    assert [line.split()[0] for line in lines[2:]] == ["update", "insert"]
    assert "picture=\\x00ff" in lines[3]
    assert told("transaction", "2")["changes"][1]["values"]["picture"] == "\\x00ff"
    found = runner.invoke(app, ["transaction", "77", "--log", "cdcflow-log"])
    assert (found.exit_code, "no transaction 77" in found.output) == (78, True)


def test_differences_and_a_range(log: Path) -> None:
    text = said("diff", NAME, "4")
    assert "removed 17\n  - id=17 note=paid\n" in text
    assert "added 99\n  + id=99 note=paid\n" in text
    assert text.endswith("2 rows differ between offset 4 and 6; 2 keys had a change in between\n")
    assert said("range", NAME, "--from", "17", "--to", "50").splitlines() == ["id=18 note=NULL _offset=2"]
    assert "there are more: raise --from, or --limit (1)" in said(
        "range", NAME, "--from", "1", "--to", "99", "--limit", "1"
    )


def test_log_is_indexed_by_hand(log: Path) -> None:
    """By the settings, as the daemon does it; then nothing is left to do."""
    assert runner.invoke(app, ["init"]).exit_code == 0
    first = runner.invoke(app, ["log", "index"])
    assert first.output.startswith("2 segments were indexed; the index has 2 files"), first.output
    assert first.output.endswith("reaches offset 6\n")
    assert json.loads(runner.invoke(app, ["log", "index", "--json"]).output)["indexed"] == 0
    assert json.loads(runner.invoke(app, ["log", "index", "--anew", "--json"]).output)["indexed"] == 2
    assert "note: paid" in runner.invoke(app, ["get", NAME, "99"]).output


def test_damaged_index_stops_the_answer_and_the_remedy_works(log: Path) -> None:
    """It would hide changes."""
    assert runner.invoke(app, ["init"]).exit_code == 0
    runner.invoke(app, ["log", "index"])
    path = sorted((log / "index").glob("*.keys"))[0]
    content = bytearray(path.read_bytes())
    content[-8] ^= 1
    path.write_bytes(content)
    found = runner.invoke(app, ["get", NAME, "17"])
    assert found.exit_code != 0
    assert "it is damaged" in found.output
    assert "cdcflow log index --anew" in found.output
    assert runner.invoke(app, ["log", "index", "--anew"]).exit_code == 0
    assert runner.invoke(app, ["get", NAME, "17"]).exit_code == 0

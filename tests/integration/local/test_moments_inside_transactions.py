"""No answer of the log has a part of a transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from typer.testing import CliRunner

import cdcflow
from cdcflow.cli.app import app
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.http.explorer import Explorer
from cdcflow.log.query.log import NOTE
from cdcflow.log.read.folder import FolderReader
from cdcflow.tables.local.current import _about

ACCOUNTS = make_table("accounts", id="int64", euros="int32")
NAME = "public.accounts"
INSIDE, WHOLE, NEXT = 3, 2, 4
NOTES = (f"offset {INSIDE} is inside a transaction; this is as of offset {WHOLE}, before it",)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two accounts, then a transfer between them at the offsets 3 and 4, then one more at 5 and 6."""
    hand = HandLog(tmp_path / "log", has_transactions=True)
    hand.state(ACCOUNTS)
    hand.segment([(ACCOUNTS, "c", {"id": 1, "euros": 10}), (ACCOUNTS, "c", {"id": 2, "euros": 10})])
    for number, euros in ((3, 5), (4, 0)):
        moved = [
            (ACCOUNTS, "u", {"id": 1, "euros": euros, "_txn": number}),
            (ACCOUNTS, "u", {"id": 2, "euros": 20 - euros, "_txn": number}),
        ]
        hand.segment(moved)
    return hand.root


def test_an_offset_inside_a_transaction_is_the_one_before_it(log: Path) -> None:
    """Money had left one account, and not yet reached the other."""
    asked = cdcflow.open(log)
    moment = asked.moment(INSIDE)
    assert (moment.offset, moment.asked, moment.notes) == (WHOLE, INSIDE, NOTES)
    assert [asked.moment(offset).offset for offset in range(7)] == [0, 1, 2, 2, 4, 4, 6]
    found = asked.get(NAME, 1, as_of=INSIDE)
    assert (found.values or {})["euros"] == 10
    assert found.notes == NOTES
    assert asked.get(NAME, 1, as_of=NEXT).notes == ()
    history = asked.history(NAME, 1, as_of=str(INSIDE))
    assert [c.offset for c in history.changes] == [1]
    assert history.notes == NOTES


def test_whole_tables_and_ranges_have_whole_transactions(log: Path) -> None:
    """The sum of all accounts is the same at each offset at which both exist."""
    asked = cdcflow.open(log)
    for offset in range(2, 7):
        for rows in (asked.current(NAME, offset), asked.range(NAME, 1, 2, offset)):
            assert sum(rows["euros"].to_pylist()) == 20, offset
            note = (rows.schema.metadata or {}).get(NOTE)
            assert (note is not None) == (offset in (3, 5)), offset


@pytest.mark.parametrize(("first", "last", "seen"), [(3, 4, {1, 2}), (3, 5, {1, 2}), (2, 3, set()), (4, 5, set())])
def test_a_comparison_is_of_whole_transactions(log: Path, first: int, last: int, seen: set[int]) -> None:
    """From within a transaction to its end only half of it would differ."""
    found = cdcflow.open(log).diff(NAME, first, last)
    assert {int(one.key[0]) for one in found.found} == seen
    assert any("inside a transaction" in note for note in found.notes)


def test_commands_and_http_name_the_point_in_time_that_they_show(log: Path) -> None:
    """The answer names the point in time that it shows."""
    for words in (["get", NAME, "1", "--as-of"], ["history", NAME, "1", "--as-of"], ["diff", NAME]):
        said = CliRunner().invoke(app, [*words, str(INSIDE), "--log", str(log)])
        assert said.exit_code == 0, said.output
        assert f"note: {NOTES[0]}" in said.output
    ranged = ["range", NAME, "--from", "1", "--to", "2", "--as-of", str(INSIDE), "--log", str(log)]
    assert f"note: {NOTES[0]}" in CliRunner().invoke(app, ranged).output
    json = CliRunner().invoke(app, [*ranged, "--json"])
    assert f"note: {NOTES[0]}" in json.stderr
    assert "note" not in json.stdout


def test_http_endpoint_names_the_point_in_time_that_it_shows(log: Path) -> None:
    """The page and programs query there."""
    explorer = Explorer(lambda: FolderReader(log), asked=lambda: cdcflow.open(log))
    row = explorer.row(NAME, ["1"], str(INSIDE))
    assert (row["offset"], row["values"]["euros"], tuple(row["notes"])) == (WHOLE, "10", NOTES)
    assert tuple(explorer.row_history(NAME, ["1"], str(INSIDE))["notes"]) == NOTES
    differences = explorer.differences(NAME, str(INSIDE), str(NEXT))
    assert (differences["first"], tuple(differences["notes"])) == (WHOLE, NOTES)


def test_a_table_that_had_no_row_yet_is_empty_and_not_unknown(tmp_path: Path) -> None:
    """The log's first record of it is a truncate: `diff` named its temporary folder, which had no such table."""
    log, others = HandLog(tmp_path / "log", has_transactions=True), make_table("others", id="int64")
    log.state(others)
    log.state(ACCOUNTS)
    log.segment([(others, "c", {"id": 1})])
    log.segment([(ACCOUNTS, "t", {}), (ACCOUNTS, "c", {"id": 1, "euros": 1})])
    asked = cdcflow.open(log.root)
    assert (asked.current(NAME, 1).num_rows, asked.current(NAME, 1).column_names) == (0, ["id", "euros", "_offset"])
    for first in (0, 1):
        assert [(one.change, one.key) for one in asked.diff(NAME, first, 3).found] == [("added", ("1",))]


def test_error_about_a_logs_past_names_the_log_of_the_query() -> None:
    """The past of a log is built in a temporary folder, which no user knows."""
    error = HistoryLost("reading /past/room/log at 7: gone", remedy="look at /past/room/log", runbook="log-expired")
    told = _about(error, "/past/room", "/data/shop")
    assert str(told) == "reading /data/shop at 7: gone\n  look at /data/shop"
    assert (type(told), told.remedy, told.runbook) == (HistoryLost, "look at /data/shop", "log-expired")


def test_a_table_of_a_name_that_is_nearly_right_is_named(log: Path) -> None:
    """A letter wrong, or the schema missing."""
    for name in ("public.account", "accounts", "Public.Accounts"):
        with pytest.raises(ConfigurationError, match=r"did you mean public\.accounts\? "):
            cdcflow.open(log).get(name, 1)

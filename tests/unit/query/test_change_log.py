"""An opened log: rows, their past, the transactions that changed them; sealed, half sealed, indexed, compacted,
expired."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import PATIENCE_S, wait_until

import cdcflow
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.query.row import Change
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import BEFORE, OP, UNCHANGED
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import COMMIT_TS, ORDERS, PRODUCTS, Writer, changes, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
NAME = str(ORDERS.id)
DONE = {"tables": {NAME: {"state": "done", "generation": 1, "since": 1, "whole_since": 1}}}


class Shop:
    """A log in its writer's hands. `sealing`: each transaction gets a separate segment."""

    def __init__(self, root: Path, *, sealing: bool, indexing: bool) -> None:
        self.layout = Layout(root)
        self.log = FileLog.open(root, IDENTITY)
        self.writer = Writer.of(self.log)
        self.sealing, self.indexing = sealing, indexing
        self.xid = 0

    def commit(self, *rows: dict[str, Any]) -> int:
        """One transaction of the orders; its last offset."""
        self.xid += 1
        at = self.writer.checkpoint
        self.writer.checkpoint = replace(at, progress=DONE)
        self.writer.put(transactions([self.xid], [len(rows)], changes(ORDERS, rows), ts=COMMIT_TS))
        if self.sealing:
            self.log.roll()
            self.log.seal_pending()
        if self.indexing:
            Indexing(self.layout).step()
        return int(self.writer.checkpoint.next_offset) - 1

    def ask(self) -> ChangeLog:
        return cdcflow.open(self.layout.root)


@pytest.fixture(params=["journal", "sealed", "indexed"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path / "log", sealing=request.param != "journal", indexing=request.param == "indexed")
    yield made
    made.log.close()


def insert(key: int, note: str | None) -> dict[str, Any]:
    return {"id": key, "note": note, OP: "c"}


def update(key: int, note: str | None = None, *, unchanged: bool = False) -> dict[str, Any]:
    return {"id": key, "note": note, OP: "u", **({UNCHANGED: ["note"]} if unchanged else {})}


def delete(key: int) -> dict[str, Any]:
    return {"id": key, OP: "d"}


def moved(key: int, before: int) -> list[dict[str, Any]]:
    return [delete(before), {"id": key, OP: "c", UNCHANGED: ["note"], BEFORE: {"id": before}}]


def test_row_at_each_point_in_time_and_the_change_that_produced_it(shop: Shop) -> None:
    """An insert, an update that leaves a column out, another key, a delete, and the same key again."""
    first = shop.commit(insert(1, "a"), insert(2, "b"))
    left = shop.commit(update(1, unchanged=True))
    away = shop.commit(*moved(7, 1))
    gone = shop.commit(delete(7))
    again = shop.commit(insert(1, None))
    log = shop.ask()

    def row(key: int, offset: int) -> Any:
        return log.get(NAME, key, as_of=offset).values

    assert row(1, first) == row(1, left) == {"id": 1, "note": "a"}
    assert (row(1, away), row(7, away)) == (None, {"id": 7, "note": "a"})
    assert row(7, gone) is None
    assert row(1, again) == {"id": 1, "note": None}
    found = log.get(NAME, "7")
    assert (found.state, found.last and found.last.offset, found.notes) == ("deleted", gone, ())
    assert log.get(NAME, 99).state == "never there"
    assert log.get(NAME, 2).moment.offset == again


def test_emptied_row_is_distinguished_from_a_deleted_one(shop: Shop) -> None:
    shop.commit(insert(1, "a"))
    at = shop.commit({OP: "t"})
    found = shop.ask().get(NAME, 1)
    assert (found.values, found.state, found.last and found.last.offset) == (None, "emptied", at)


def test_row_that_only_follows_a_delete_is_not_the_same_row(shop: Shop) -> None:
    """A transaction deletes one row and inserts another: no change of a key. Neither history nor watch takes it in."""
    shop.commit(insert(1, "a"))
    log = shop.ask()
    watched = log.watch(NAME, 1, after=1, wait=lambda _: True)
    shop.commit(delete(1), insert(7, "b"))
    assert [(c.op, c.values.get("id")) for c in log.history(NAME, 1).changes] == [("d", 1), ("c", 1)]
    assert [(c.op, c.values.get("id")) for c in watched] == [("d", 1)]


def test_history_of_a_row_is_latest_first_and_continues_where_it_stopped(shop: Shop) -> None:
    """Including the row that it became when its key changed."""
    shop.commit(insert(1, "a"), insert(2, "x"))
    for note in "bcd":
        shop.commit(update(1, note), update(2, note))
    shop.commit(*moved(7, 1))
    log = shop.ask()
    found = log.history(NAME, 1)
    assert [(c.op, c.values.get("id")) for c in found.changes] == [("c", 7), ("d", 1), *[("u", 1)] * 3, ("c", 1)]
    assert found.changes[0].before == {"id": 1}
    assert (found.more, found.back_to) == (False, 1)
    newest = log.history(NAME, 1, limit=2)
    assert newest.more
    rest = log.history(NAME, 1, before=newest.back_to)
    assert [c.offset for c in (*newest.changes, *rest.changes)] == [c.offset for c in found.changes]
    assert [c.op for c in log.history(NAME, 1, as_of=4).changes] == ["u", "c"]


def test_transaction_has_everything_that_was_in_it(shop: Shop) -> None:
    """Which transaction changed it, and which other rows are in that transaction."""
    shop.commit(insert(1, "a"))
    shop.commit(insert(2, "b"), update(1, "z"), delete(2))
    log = shop.ask()
    last = log.get(NAME, 1).last
    assert last is not None
    found = log.transaction(last.transaction)
    assert [(c.op, c.values["id"]) for c in found.changes] == [("c", 2), ("u", 1), ("d", 2)]
    assert (found.xid, found.kind, found.position, found.truncated) == (2, "source", "0/2", False)
    assert [c.offset for c in log.transaction(last.transaction, limit=2).changes] == [2, 3]
    with pytest.raises(ConfigurationError, match="no transaction 99 with rows"):
        log.transaction(99)


def test_difference_between_two_points_in_time(shop: Shop) -> None:
    """Inserted, deleted and changed rows; a row that was inserted and deleted in between, and an unchanged one, are not
    in it."""
    then = shop.commit(*(insert(n, "a") for n in range(1, 5)))
    shop.commit(delete(1), update(2, "b"), insert(5, "n"), insert(6, "x"), update(3, "y"))
    shop.commit(delete(6), update(3, "a"))
    found = shop.ask().diff(NAME, then)
    assert {(d.change, d.key): (d.before, d.after) for d in found.found} == {
        ("removed", ("1",)): ({"id": 1, "note": "a"}, None),
        ("changed", ("2",)): ({"id": 2, "note": "a"}, {"id": 2, "note": "b"}),
        ("added", ("5",)): (None, {"id": 5, "note": "n"}),
    }
    assert (found.touched, found.truncated) == (5, False)
    assert shop.ask().diff(NAME, then, limit=2).truncated
    shop.commit({OP: "t"})
    assert {d.key for d in shop.ask().diff(NAME, then).found} == {("1",), ("2",), ("3",), ("4",)}
    with pytest.raises(ConfigurationError, match=r"(?s)the first \(\d+\) is the later one.*name the earlier one first"):
        shop.ask().diff(NAME, then, 0)


def test_whole_table_and_a_range_of_it_at_a_point_in_time(shop: Shop) -> None:
    then = shop.commit(*(insert(n, f"n{n}") for n in range(1, 9)))
    shop.commit(delete(3), update(4, "later"))
    log = shop.ask()
    assert sorted(log.current(NAME).column("id").to_pylist()) == [1, 2, 4, 5, 6, 7, 8]
    assert log.range(NAME, 3, 5, as_of=then).select(["id", "note"]).to_pylist() == [
        {"id": n, "note": f"n{n}"} for n in (3, 4, 5)
    ]
    assert log.range(NAME, 3, "5").select(["id", "note"]).to_pylist() == [
        {"id": 4, "note": "later"},
        {"id": 5, "note": "n5"},
    ]
    assert log.range(NAME, 1, 8, limit=2).column("id").to_pylist() == [1, 2]


def test_points_in_time_are_offsets_cuts_positions_and_times(shop: Shop) -> None:
    """The transactions' clocks are a microsecond apart."""
    offsets = [shop.commit(insert(1, "a"))] + [shop.commit(update(1, note)) for note in "bcd"]
    log = shop.ask()
    assert [log.moment(f"0/{n}").offset for n in (1, 2, 3, 4)] == offsets
    assert log.moment("2023-11-14T22:13:20.000001Z").offset == offsets[1]
    assert log.moment("2023-11-14T22:13:19Z").offset == 0
    assert log.moment(str(offsets[2])).offset == offsets[2]
    if shop.sealing:
        assert log.moment("cut:2").offset == offsets[1]
    assert log.get(NAME, 1, as_of="0/3").values == {"id": 1, "note": "c"}
    with pytest.raises(ConfigurationError, match=r"(?s)as of yesterday: that is no offset.*2026-11-25T10:00:00Z"):
        log.moment("yesterday")
    with pytest.raises(ConfigurationError, match="the log ends at offset 4"):
        log.moment(5)


@pytest.mark.parametrize(
    ("table", "key", "says"),
    [
        ("shop.nothing", ["1"], r"(?s)no table shop\.nothing; it has: shop\.orders.*schema\.table"),
        (NAME, ["1", "2"], r"(?s)its key has 1 columns, 2 were given.*give a value for each of: id"),
        (NAME, ["x"], r"(?s)is not a value of its column.*id \(int64\)"),
    ],
)
def test_unanswerable_queries_are_refused_with_the_reason(shop: Shop, table: str, key: list[str], says: str) -> None:
    shop.commit(insert(1, "a"))
    with pytest.raises(ConfigurationError, match=says):
        shop.ask().get(table, *key)


def test_answer_reports_what_it_does_not_cover(tmp_path: Path) -> None:
    """Expired history, and a table with missing rows: "never existed" would be a guess."""
    shop = Shop(tmp_path / "log", sealing=True, indexing=True)
    shop.commit(insert(1, "a"))
    shop.commit(insert(2, "b"))
    last = shop.commit(update(2, unchanged=True))
    shop.commit(insert(3, "c"))
    LogRetention(shop.layout).expire(ExpiryRule(before_cut=3))
    log = shop.ask()
    expired = f"the log begins at offset {last}: what was before has expired"
    assert (log.get(NAME, 1).state, log.get(NAME, 1).notes) == ("not known", (expired,))
    found = log.get(NAME, 2)
    assert (found.values, found.unknown, found.notes) == ({"id": 2}, ("note",), (expired,))
    assert log.get(NAME, 3).values == {"id": 3, "note": "c"}
    assert log.history(NAME, 2).notes == (expired,)
    with pytest.raises(HistoryLost, match=rf"that offset has expired; the first one left is {last}"):
        log.get(NAME, 1, as_of=1)
    with pytest.raises(ConfigurationError, match=expired):
        log.current(NAME)
    shop.log.close()


def test_log_is_read_on_while_it_is_written_sealed_compacted_and_indexed(tmp_path: Path) -> None:
    """One opened log, queried again and again: it sees each commit at once, and reads no file without the key."""
    shop = Shop(tmp_path / "log", sealing=False, indexing=False)
    shop.commit(*(insert(n, "0") for n in range(5)))
    log = shop.ask()
    for number in range(1, 24):
        shop.commit(update(number % 5, str(number)))
        if number % 3 == 0:
            shop.log.roll()
            shop.log.seal_pending()
        if number % 7 == 0:
            Indexing(shop.layout).step()
        if number % 11 == 0:
            LogRetention(shop.layout, grace_s=0).compact()
        newest = {n % 5: str(n) for n in range(1, number + 1)}
        for key in range(5):
            assert log.get(NAME, key).values == {"id": key, "note": newest.get(key, "0")}
    shop.log.roll()
    shop.log.seal_pending()
    Indexing(shop.layout).step()
    before = log.files_read
    assert log.get(NAME, 4711).state == "never there"
    assert log.files_read == before
    shop.log.close()


def test_changes_of_a_row_are_pushed_as_they_arrive(shop: Shop) -> None:
    """In order, each once, without those of other rows; also across sealing."""
    shop.commit(insert(1, "a"), insert(2, "b"))
    begun, stop = threading.Event(), threading.Event()
    seen: list[Change] = []

    def look() -> None:
        log = shop.ask()
        at = log.now().offset
        begun.set()
        seen.extend(log.watch(NAME, 1, after=at, wait=stop.wait))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    assert begun.wait(PATIENCE_S)
    for note in "cdef":
        shop.commit(update(1, note), update(2, note))
    shop.commit(delete(1))
    rows: list[int] = []
    for _, _, part in shop.ask().follow(NAME, after=2, wait=lambda _: sum(rows) >= 9):
        rows.append(part.num_rows)
    assert sum(rows) == 9
    wait_until(lambda: len(seen) >= 5, "the changes of the row", more=lambda: seen)
    stop.wait(0.3)
    stop.set()
    thread.join(PATIENCE_S)
    assert [(c.op, c.values.get("note")) for c in seen] == [*(("u", note) for note in "cdef"), ("d", None)]


def test_tables_are_listed_with_their_shapes(shop: Shop) -> None:
    shop.commit(insert(1, "a"))
    assert shop.ask().tables() == {NAME: ORDERS}
    assert [rows.num_rows for _, _, rows in shop.ask().changes(NAME)] == [1]
    assert str(PRODUCTS.id) not in shop.ask().tables()


def test_missing_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"(?s)there is no change log at .*name the log's folder, its s3:// URL"
    ):
        cdcflow.open(tmp_path / "nowhere")

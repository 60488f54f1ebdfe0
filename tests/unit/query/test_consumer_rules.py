"""Consumers: their lease, their cursors, what their backfill lacks, and the remedy that each error prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from typer.testing import CliRunner

import cdcflow
from cdcflow.cli.app import app
from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.log.disk.maintenance_lock import Busy
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance import consumer_files as kept
from cdcflow.log.maintenance.expiry import Expiring, ExpiryPolicy, left_behind
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.maintenance.snapshots_before_expiry import Keeping
from cdcflow.log.query import consumer as consuming
from cdcflow.log.query.consumer import Batch
from cdcflow.log.query.consumers import Consumers
from cdcflow.log.query.cursors import ConsumerState, Cursor, Definition
from cdcflow.log.read.reader import list_segments
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS as SINK_ORDERS
from cdcflow.testing.sinks import Writer, changes, transactions

ORDERS = make_table("orders", id="int64", v="string")
ITEMS = make_table("items", id="int64", v="string")
NAME = "public.orders"
Told = list[tuple[str, Mapping[str, object]]]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandLog:
    """Four rows of orders and two of items that a backfill read, in one segment."""
    monkeypatch.chdir(tmp_path)
    made = HandLog(tmp_path / "log", has_transactions=True)
    made.state(ORDERS)
    made.state(ITEMS)
    rows = [(ORDERS, "r", {"id": n, "v": "a", "_txn": 1}) for n in range(1, 5)]
    made.segment([*rows, *((ITEMS, "r", {"id": n, "v": "a", "_txn": 1}) for n in (1, 2))])
    return made


def write(log: HandLog, *ids: int, table: Any = ORDERS, op: str = "c") -> None:
    """A segment of transactions of one row each."""
    log.segment([(table, op, {"id": n, "v": "b", "_txn": 100 + n}) for n in ids])


def consumers(log: HandLog) -> Consumers:
    return cdcflow.open(log.root).consumers()


def ids(batches: list[Batch]) -> list[int]:
    return [n for batch in batches for n in batch.rows.column("id").to_pylist()]


def read(log: HandLog, name: str = "shop", *, commits: bool = True, **given: Any) -> list[Batch]:
    found = []
    with cdcflow.open(log.root).consumer(name, **given) as consumer:
        for batch in consumer:
            found.append(batch)
            if commits:
                consumer.commit(batch.cursor)
    return found


def expire(log: HandLog, *, consumers: bool = True) -> Told:
    events: Told = []
    policy = ExpiryPolicy(0.001, None, [], consumers)
    Expiring(Layout(log.root), policy, lambda *event: events.append(event), every_s=600).step()
    return events


def follow(remedy: str | None, log: HandLog) -> None:
    """Run each command of cdcflow that a remedy prints, in its order."""
    commands = re.findall(r"`(cdcflow [^`]+)`", remedy or "")
    assert commands, remedy
    for command in commands:
        words = shlex.split(command)[1:]
        if words[0] == "backfill":  # the daemon has the table read: its rows are in the log again
            log.state(ORDERS, generation=2, since=log.next_offset)
            log.segment([(ORDERS, "r", {"id": n, "v": "z", "_txn": 900 + log.next_offset}) for n in range(1, 4)])
        else:
            found = CliRunner().invoke(app, [*words, "--log", str(log.root)])
            assert found.exit_code == 0, found.output


# ── what it gets ────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_delivered_first_in_key_order_and_then_every_change(log: HandLog) -> None:
    """As of one offset for all tables: what was committed later is a change, and nothing is both."""
    write(log, 9, 7)
    with cdcflow.open(log.root).consumer("shop", batch_rows=3) as consumer:
        found = list(consumer)
        assert [(b.table, b.is_backfill, b.rows.column("id").to_pylist()) for b in found] == [
            ("public.items", True, [1, 2]),
            (NAME, True, [1, 2, 3]),
            (NAME, True, [4, 7, 9]),
        ]
        assert found[2].rows.schema.equals(ORDERS.log_schema)
        assert found[2].rows.select(["_offset", "_op", "_txn"]).to_pylist() == [
            {"_offset": offset, "_op": "r", "_txn": number} for offset, number in ((4, 1), (8, 107), (7, 109))
        ]
        consumer.commit(found[2].cursor)
        write(log, 5)
        [change] = list(consumer)
    assert (change.is_backfill, ids([change]), change.rows.column("_op").to_pylist()) == (False, [5], ["c"])


def test_some_tables_and_some_ops(log: HandLog) -> None:
    """Without r among its ops a consumer begins with changes."""
    assert [b.table for b in read(log, tables=["public.items"])] == ["public.items"]
    write(log, 7)
    write(log, 3, table=ITEMS, op="d")
    assert ids(read(log)) == [3]
    with cdcflow.open(log.root).consumer("gone", ops="d") as consumer:
        assert list(consumer) == []
        write(log, 2, table=ITEMS, op="d")
        write(log, 8)
        assert ids(list(consumer)) == [2]


@pytest.mark.parametrize(("start", "expected"), [("now", []), ("beginning", [1, 2, 3, 4, 7, 8]), (7, [8]), ("7", [8])])
def test_where_it_begins(log: HandLog, start: Any, expected: list[int]) -> None:
    """With changes alone, starting at any point that the log has."""
    write(log, 7, 8)
    assert ids(read(log, tables=[NAME], start=start)) == expected


def test_table_that_is_created_later_is_delivered_since_its_first_change(log: HandLog) -> None:
    """Its backfill at the source is in the log as changes; the consumer needs no change of its settings."""
    read(log)
    late = make_table("late", id="int64", v="string")
    log.state(late, "reading", since=log.next_offset)
    write(log, 1, 2, table=late, op="r")
    assert [(b.table, ids([b]), b.is_backfill) for b in read(log)] == [("public.late", [1, 2], False)]


def test_changes_of_a_table_in_its_backfill_are_delivered(log: HandLog) -> None:
    """It is not waited for: the rows that the log has of it are delivered, and so are its later ones."""
    late = make_table("late", id="int64", v="string")
    log.state(late, "reading", since=log.next_offset)
    write(log, 1, 2, 3, table=late, op="r")
    with cdcflow.open(log.root).consumer("shop", ["public.late"], batch_rows=2) as consumer:
        found = list(consumer)
        assert [(ids([b]), b.is_backfill) for b in found] == [([1, 2], True), ([3], True)]
        consumer.commit(found[0].cursor)
        assert ids(list(consumer)) == [3]
        consumer.commit(found[1].cursor)
        assert not consumer.state.is_in_backfill
        write(log, 4, table=late, op="r")
        assert [(ids([b]), b.is_backfill) for b in consumer] == [([4], False)]


def test_table_whose_rows_are_not_in_the_log_is_named_with_a_remedy_that_works(log: HandLog) -> None:
    """A backfill that lacks rows would be a permanently wrong copy."""
    for n in range(5, 8):
        write(log, n)
    LogRetention(Layout(log.root), grace_s=0).expire(ExpiryRule(before_cut=3))
    with pytest.raises(ConfigurationError, match=r"public.orders \(.*has expired") as told:
        consumers(log).create(Definition("shop", (NAME,)))
    follow(told.value.remedy, log)
    assert ids(read(log, tables=[NAME])) == [1, 2, 3]
    consumers(log).create(Definition("later", (NAME,)), "now")


def test_what_is_not_sealed_is_synced_before_it_is_handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers see a cut before its writer synced it; a cursor of rows that a power failure takes would skip others."""
    opened = FileLog.open(tmp_path / "log", SourceIdentity("postgres", "7301", "shop", "1"))
    writer = Writer.of(opened)
    synced: list[Path] = []
    monkeypatch.setattr("cdcflow.log.disk.fsync_reads._sync", synced.append)
    with cdcflow.open(tmp_path / "log").consumer("shop", start="now") as consumer:
        writer.put(transactions([1], [2], changes(SINK_ORDERS, [{"id": 1, "note": "a"}, {"id": 2, "note": "b"}])))
        [batch] = list(consumer)
    opened.close()
    assert ids([batch]) == [1, 2]
    assert [path.suffix for path in synced if path.parent.name == "journal"] == [".journal"]


# ── cursors ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_commit_never_moves_a_position_back_and_a_seek_does(log: HandLog) -> None:
    """In the backfill and after it; the printed command moves the position back."""
    write(log, 7, 8)
    with cdcflow.open(log.root).consumer("shop", [NAME], batch_rows=1, start=6) as consumer:
        first, second = list(consumer)
        consumer.commit(second.cursor)
        with pytest.raises(ConfigurationError, match="a commit never goes back") as told:
            consumer.commit(first.cursor)
    follow(told.value.remedy, log)
    assert ids(read(log)) == [8]
    with cdcflow.open(log.root).consumer("rows", [NAME], batch_rows=2) as consumer:
        batches = list(consumer)
        consumer.commit(batches[1].cursor)
        with pytest.raises(ConfigurationError, match="a commit never goes back"):
            consumer.commit(batches[0].cursor)
        consumer.seek(batches[0].cursor)
        assert ids(list(consumer)) == [3, 4, 7, 8]
        consumer.seek(7)
        assert ids(list(consumer)) == [8]


def test_reader_that_collects_before_it_commits_loses_nothing(log: HandLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncommitted batches are delivered again, even if nothing else follows them."""

    def lost() -> bool:
        name = f"shop{log.next_offset}"
        with cdcflow.open(log.root).consumer(name, [NAME], start="now") as consumer:
            write(log, 7)
            write(log, 1, table=ITEMS)
            assert ids(list(consumer)) == [7]  # and its process ends
        return ids(read(log, name)) != [7]

    assert not lost()
    right = consuming.Consumer._pass

    def passing(self: Any, quiet_to: int, at_least: int) -> None:
        self._handed = self.state.committed
        right(self, quiet_to, at_least)

    monkeypatch.setattr(consuming.Consumer, "_pass", passing)
    assert lost(), "the planted fault was not found"


def test_idle_consumer_of_a_quiet_table_does_not_hold_the_log(log: HandLog) -> None:
    """It has no rows to commit, and still it advances; its last cursor stays valid."""
    [batch] = read(log, tables=["public.items"])
    for n in range(7, 10):
        write(log, n)
    assert read(log) == []
    assert kept.notes(Layout(log.root))[0].offset == 9
    expire(log)
    assert [s.first_offset for s in list_segments(Layout(log.root))] == [9]
    write(log, 5, table=ITEMS)
    with cdcflow.open(log.root).consumer("shop") as consumer:
        assert ids(list(consumer.read(batch.cursor))) == [5]


def test_stored_cursor_stays_good_when_the_rest_of_the_backfill_is_empty(log: HandLog) -> None:
    """The consumer moves on over tables without rows, and the log expires: its last cursor is good."""
    write(log, 1, 2, 3, 4, op="d")
    with cdcflow.open(log.root).consumer("shop") as consumer:
        [batch] = list(consumer)
        assert batch.table == "public.items"
        consumer.commit(batch.cursor)
        assert list(consumer) == []
        assert not consumer.state.is_in_backfill
        for n in range(7, 10):
            write(log, n)
        assert ids(list(consumer.read(batch.cursor))) == [7, 8, 9]
        consumer.commit(list(consumer)[-1].cursor)
    expire(log)
    early = str(replace(Cursor.of(batch.cursor), part=0, place=1))
    with cdcflow.open(log.root).consumer("shop") as consumer, pytest.raises(HistoryLost):
        list(consumer.read(early))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"log_id": "other"}, "belongs to another log"),
        ({"consumer": "other"}, "consumer other's"),
        ({"generation": 7, "part": 0}, "to an earlier backfill"),
        ({"offset": 999}, "the log ends at offset 6"),
    ],
)
def test_foreign_cursor_is_refused(log: HandLog, change: dict[str, Any], words: str) -> None:
    """Instead of continuing from a position that means nothing here."""
    with cdcflow.open(log.root).consumer("shop", [NAME]) as consumer:
        given = str(replace(consumer.state.committed, **{"part": None, **change}))
        with pytest.raises(ConfigurationError, match=words):
            list(consumer.read(given))
        with pytest.raises(ConfigurationError, match=words):
            consumer.commit(given)


def test_consumer_of_another_log_is_refused(log: HandLog, tmp_path: Path) -> None:
    """Its offsets mean other rows there."""
    other = HandLog(tmp_path / "other", "log-b", has_transactions=True)
    other.state(ORDERS)
    other.segment([(ORDERS, "r", {"id": 9, "v": "a", "_txn": 1})])
    read(log, state="kept")
    with pytest.raises(ConfigurationError, match="a consumer of another log") as told:
        read(other, state="kept")
    follow(told.value.remedy, other)
    assert ids(read(other, state="kept")) == [9]


@pytest.mark.parametrize("text", ["", "4711", "x y", "WzFd", str(Cursor("a", "b", 1, 2))[:-3]])
def test_text_that_is_no_cursor_is_refused(log: HandLog, text: str) -> None:
    with cdcflow.open(log.root).consumer("shop", [NAME]) as consumer, pytest.raises(ConfigurationError, match="cursor"):
        list(consumer.read(text))


def test_state_survives_and_a_damaged_one_is_named(log: HandLog) -> None:
    """A half or foreign file is not a consumer at its beginning."""
    read(log, tables=[NAME])
    path = log.root / "consumers" / "shop.json"
    state = ConsumerState.from_json(path.read_bytes(), "x")
    assert ConsumerState.from_json(state.to_json(), "x") == state
    path.write_text(path.read_text()[:-20])
    with pytest.raises(InvariantViolated, match=r"shop\.json: it is not a consumer's state"):
        read(log)


# ── the lease ───────────────────────────────────────────────────────────────────────────────────────────────

HOLDS = (
    "import cdcflow, sys\nwith cdcflow.open(sys.argv[1]).consumer('shop'):\n    print('held', flush=True)\n    input()"
)


def test_second_reader_is_refused_with_the_name_of_the_first_until_that_one_dies(log: HandLog) -> None:
    """Two readers under one name would share one position, and commit for each other."""
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(log.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for act in (lambda: read(log), lambda: consumers(log).drop("shop")):
            with pytest.raises(Busy, match=rf"shop: process {other.pid} on .* one reader at a time"):
                act()
        assert f"process {other.pid}" in str(consumers(log).list_consumers()[0].held_by)
    finally:
        other.kill()
        other.communicate()
    assert consumers(log).list_consumers()[0].held_by is None
    assert ids(read(log)) == [1, 2, 1, 2, 3, 4]


def test_without_a_lease_nothing_is_read(log: HandLog) -> None:
    """An object that is kept after its block must not keep reading next to the next reader."""
    with cdcflow.open(log.root).consumer("shop") as consumer:
        pass
    with pytest.raises(ConfigurationError, match="it is not open"):
        list(consumer)
    again = consumers(log).open("shop")
    with again, pytest.raises(Busy), consumers(log).open("shop"):
        pass


# ── expiry ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_expiry_waits_for_consumers_and_names_them(log: HandLog) -> None:
    """By default; a consumer in its backfill needs the changes that its rows are built from."""
    with cdcflow.open(log.root).consumer("shop", [NAME]) as consumer:
        for n in range(7, 10):
            write(log, n)
        [(event, fields)] = expire(log)
        assert event == "retention waits"
        assert "consumer shop needs the log after offset 0" in str(fields["reason"])
        for batch in consumer:
            consumer.commit(batch.cursor)
    assert [event for event, _ in expire(log)] == ["log expired"]


def test_expiry_that_does_not_wait_names_the_late_consumer_and_its_remedy_works(log: HandLog) -> None:
    """`keep_for` without consumer is the operator's decision; the reader gets an error, and its remedy works."""
    read(log, tables=[NAME])
    for n in range(7, 10):
        write(log, n)
    [(event, fields)] = expire(log, consumers=False)
    assert (event, fields["consumers_behind"]) == ("log expired", "shop")
    with pytest.raises(HistoryLost, match="what it needs next has expired") as told:
        read(log)
    assert "cdcflow backfill public.orders" in str(told.value.remedy)
    follow(told.value.remedy, log)
    assert ids(read(log)) == [1, 2, 3]


def test_backfill_that_expired_in_the_middle_leads_to_a_new_one(log: HandLog) -> None:
    """In between the table was read again at the source, so the log has all that a new backfill needs."""
    with cdcflow.open(log.root).consumer("shop", [NAME], batch_rows=2) as consumer:
        first = next(iter(consumer))
        consumer.commit(first.cursor)
        log.state(ORDERS, generation=2, since=log.next_offset)
        write(log, 1, 2, 3, 4, op="r")
        expire(log, consumers=False)
        with pytest.raises(HistoryLost, match=r"public\.orders needs offset 1") as told:
            list(consumer)
    assert "backfill public" not in str(told.value.remedy)
    follow(told.value.remedy, log)
    assert ids(read(log)) == [1, 2, 3, 4]
    with cdcflow.open(log.root).consumer("shop") as consumer, pytest.raises(ConfigurationError, match="earlier backf"):
        list(consumer.read(first.cursor))


def test_compaction_over_the_backfills_offset_changes_nothing(log: HandLog) -> None:
    """The segment that ended there is gone, and with it its checkpoint's entry for the table."""
    write(log, 7)
    with cdcflow.open(log.root).consumer("shop", [NAME], batch_rows=2) as consumer:
        first = next(iter(consumer))
        log.state(ORDERS, "reading", generation=2, since=log.next_offset)
        write(log, 8)
        log.state(ORDERS, generation=2, since=log.next_offset - 1)
        write(log, 9)
        write(log, 10)
        log.compact(3)
        assert ids(list(consumer.read(first.cursor))) == [3, 4, 7, 8, 9, 10]


# ── where it is kept ────────────────────────────────────────────────────────────────────────────────────────


def test_invalid_consumer_name_is_refused(log: HandLog) -> None:
    for name in ("", "a/b", "../x", "-x", "x" * 65, ".x"):
        with pytest.raises(ConfigurationError, match="naming a consumer"):
            consumers(log).create(Definition(name))
        with pytest.raises(ConfigurationError, match="naming a consumer"), consumers(log).open(name):
            pass
        with pytest.raises(ConfigurationError, match="naming a consumer"):
            consumers(log).drop(name)


def test_consumer_keeps_its_definition(log: HandLog) -> None:
    """Other tables under the same name would have a backfill that misses theirs."""
    read(log, tables=[NAME])
    for given in ({"tables": ["public.items"]}, {"ops": "c"}):
        with pytest.raises(ConfigurationError, match="created with other tables or ops"):
            read(log, **given)
    with pytest.raises(ConfigurationError, match="it already exists"):
        consumers(log).create(Definition("shop"))
    with pytest.raises(ConfigurationError, match=r"has no table public\.nosuch") as told:
        read(log, "other", tables=["public.nosuch"])
    assert told.value.runbook == "table-not-found"


def test_folder_can_be_named_where_the_log_is_elsewhere(log: HandLog, tmp_path: Path) -> None:
    """A log in a bucket has no local folder; the printed command finds the consumer again."""
    folder = tmp_path / "my state"
    asked = cdcflow.open(log.root)
    asked._states = lambda named: (_ for _ in ()).throw(_elsewhere()) if named is None else _kept(asked, named)
    with pytest.raises(ConfigurationError, match="no folder on this machine"):
        asked.consumer("shop")
    with asked.consumer("shop", [NAME], state=folder) as consumer:
        batches = list(consumer)
        consumer.commit(batches[-1].cursor)
        early = str(replace(consumer.state.committed, part=None, offset=1))
        with pytest.raises(ConfigurationError, match="never goes back") as told:
            consumer.commit(early)
    follow(told.value.remedy, log)
    assert sorted(path.name for path in folder.iterdir()) == ["shop.json", "shop.lock"]
    assert kept.notes(Layout(log.root)) == []


def _elsewhere() -> CdcflowError:
    return ConfigurationError("the log has no folder on this machine")


def _kept(asked: Any, named: Any) -> kept.ConsumerFiles:
    return kept.ConsumerFiles(Path(named), asked.layout, f" --state {shlex.quote(str(named))}")


def test_state_that_the_log_keeps_is_enough_for_a_backfill(log: HandLog) -> None:
    """A log of a week has the rows of tables that were read a year ago, where it keeps its state at what expired."""
    write(log, 7)
    write(log, 8)
    write(log, 9)
    layout = Layout(log.root)
    Keeping(cdcflow.open(log.root), layout).keep(7)
    assert consumers(log).create(Definition("before", (NAME,))).is_in_backfill
    LogRetention(layout, grace_s=0).expire(ExpiryRule(before_cut=3))
    assert ids(read(log, tables=[NAME])) == [1, 2, 3, 4, 7, 8, 9]
    assert left_behind(layout) == []
    assert ids(read(log, "before")) == [1, 2, 3, 4, 7, 8, 9]


# ── faults that are planted ─────────────────────────────────────────────────────────────────────────────────


def refuses_a_second_reader(log: HandLog) -> bool:
    with cdcflow.open(log.root).consumer("planted"):
        try:
            with cdcflow.open(log.root).consumer("planted"):
                return False
        except Busy:
            return True


def never_goes_back(log: HandLog) -> bool:
    with cdcflow.open(log.root).consumer("planted", [NAME], batch_rows=2) as consumer:
        first, second = list(consumer)
        consumer.commit(second.cursor)
        with suppress(ConfigurationError):
            consumer.commit(first.cursor)
        return consumer.committed == second.cursor


def outlives_its_process(log: HandLog) -> bool:
    [batch] = read(log, "planted", tables=[NAME])
    with cdcflow.open(log.root).consumer("planted") as consumer:
        return consumer.committed == batch.cursor


PLANTED: dict[Callable[[HandLog], bool], tuple[str, Any]] = {
    refuses_a_second_reader: (
        "cdcflow.log.maintenance.consumer_files.lock_file",
        lambda path, refusal: os.open(path, os.O_RDWR | os.O_CREAT),
    ),
    never_goes_back: ("cdcflow.log.query.cursors.ConsumerState.is_before", lambda state, cursor: False),
    outlives_its_process: (
        "cdcflow.log.query.consumer.Consumer._keep",
        lambda self, state: setattr(self, "_state", state),
    ),
}


@pytest.mark.parametrize("holds", PLANTED, ids=lambda holds: holds.__name__)
def test_promise_holds_and_its_fault_would_be_seen(
    log: HandLog, holds: Callable[[HandLog], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken promise that no test can detect is worthless."""
    assert holds(log)
    consumers(log).drop("planted")
    monkeypatch.setattr(*PLANTED[holds])
    assert not holds(log)

"""Two tables, one of which has a row that cannot leave its source: whatever reads the log or its tables names that
table until it is read again, and shows the other one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from tests.support.tables.row_targets import MemoryTarget

from cdcflow import local, wiring
from cdcflow.capture.attempt import Attempt, Orders
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.ports.plugin import SourcePlugin
from cdcflow.capture.waker import Waker
from cdcflow.config import Config, FileLog
from cdcflow.config.columns import TableRules
from cdcflow.daemon.interfaces.findings import remarks
from cdcflow.daemon.merge_process import prepare_merge
from cdcflow.errors import ConfigurationError
from cdcflow.log.read import reader
from cdcflow.model.table import TableId
from cdcflow.sinks.files.log import FileLog as Files
from cdcflow.sinks.files.spool_file import SpoolFile
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.memory import MemoryDatabase, MemorySource
from cdcflow.sources.memory_database import INTEGER, TEXT, number_of
from cdcflow.targets.delivery import TargetDelivery
from cdcflow.wiring.logs import log_id
from cdcflow.wiring.plugged import ProgramSource

USERS, ORDERS = TableId("shop", "users"), TableId("shop", "orders")
SECRET = "c4n4ry"  # noqa: S105  a value that nothing may show
STRICT: dict[str, Any] = {"where": "CAST(note AS integer) >= 0"}
MENDED: dict[str, Any] = {"where": f"CASE WHEN note = '{SECRET}' THEN FALSE ELSE CAST(note AS integer) >= 0 END"}


class Killed(Exception):
    """Ends an attempt without its last sync."""


class TwoTables:
    """A pipeline of `shop.users`, whose notes must be numbers, and `shop.orders`."""

    def __init__(self, folder: Path, spool_rows: int = 1000) -> None:
        self.folder = folder
        self.database = MemoryDatabase("two")
        self.spool_rows = spool_rows
        for table in (USERS, ORDERS):
            self.database.create(table, {"id": INTEGER, "note": TEXT}, ("id",))
        self.target = MemoryTarget()
        self.events: list[tuple[str, dict[str, Any]]] = []

    def config(self, rules: dict[str, Any], named: dict[str, Any] | None = None) -> Config:
        plugin = SourcePlugin(
            ports=1,
            settings=ProgramSource,
            open=lambda settings: MemorySource(self.database, ("shop.*",), spool_rows=self.spool_rows),
        )
        return Config(
            source=ProgramSource(tables=("shop.*",), plugin=plugin),
            log=FileLog(path=self.folder / "log"),
            tables={name: TableRules.model_validate(one) for name, one in (named or {str(USERS): rules}).items()},
            merge={"engine": "local", "warehouse": self.folder / "warehouse"},
        )

    def write(self, *notes: str, first: int = 1, table: TableId = USERS) -> None:
        transaction = self.database.begin()
        transaction.insert(table, *({"id": first + i, "note": note} for i, note in enumerate(notes)))
        transaction.insert(ORDERS, {"id": 1000 + first, "note": f"with {first}"})
        transaction.commit()

    @contextmanager
    def attempt(
        self,
        rules: dict[str, Any],
        orders: Orders | None = None,
        on_event: Callable[[str], None] = lambda event: None,
        named: dict[str, Any] | None = None,
    ) -> Iterator[Attempt]:
        def told(event: str, fields: Any) -> None:
            self.events.append((event, dict(fields)))
            on_event(event)

        settings = wiring.capture_settings(self.config(rules, named))
        with (
            closing(settings.open_source()) as source,
            closing(Waker()) as waker,
            closing(settings.open_log(source.identity(), False)) as log,
        ):
            made = Attempt(
                source,
                log,
                log_id=log.log_id,
                epoch=log.epoch,
                limits=settings.limits,
                orders=orders or Orders(),
                pace=settings.pace,
                requests=SimpleQueue(),
                waker=waker,
                on_event=told,
            )
            with closing(made):
                yield made

    def capture(
        self,
        rules: dict[str, Any],
        orders: Orders | None = None,
        changes: Callable[[], None] | None = None,
        named: dict[str, Any] | None = None,
    ) -> None:
        """Until everything is read, and the changes of `changes` are durable. `named`: rules of other tables, too."""
        end: int | None = None

        def is_done() -> bool:
            nonlocal end
            if not attempt.has_read_all():
                return False
            if end is None:
                if changes is not None:
                    changes()
                end = self.database.end
            reached = attempt.durable_position
            return reached is not None and number_of(reached) >= end

        with self.attempt(rules, orders, named=named) as attempt:
            attempt.run(is_done)

    def merge(self) -> None:
        prepare_merge(self.config(STRICT), lambda text: None, lambda progress: None)()

    def known(self, table: TableId = USERS) -> TableProgress:
        return Progress.from_json(reader.newest_checkpoint(self.folder / "log").progress).tables[table]

    def captured(self, table: TableId) -> set[int]:
        """The ids of the rows that the log has of a table now."""
        return set(wiring.open_for_queries(self.folder / "log").current(str(table)).column("id").to_pylist())

    def source_rows(self, table: TableId) -> list[tuple[Any, ...]]:
        rows = self.database.tables[table].rows.values()
        return sorted((row["id"], row["note"]) for row in rows if row["note"] != SECRET)

    def assert_named_and_hidden(self) -> None:
        """The failed table is never shown as current, and the other one is."""
        known = self.known()
        assert known.lacks_changes
        assert SECRET not in str(known.reason)
        assert "cdcflow backfill shop.users" in str(known.reason)
        (missing, _) = known.missed[-1]
        later = [table.id for table, _, _ in reader.read_rows(self.folder / "log", missing)]
        assert USERS not in later, "topics and consumers would get it"
        self.merge()
        warehouse, log = self.folder / "warehouse", self.folder / "log"
        for found in (local.read_cut(warehouse), local.read_live(log, warehouse)):
            assert str(USERS) not in found
            assert rows_of(found[str(ORDERS)]) == self.source_rows(ORDERS)
        assert local.read_live(log, warehouse, incomplete=True).incomplete[str(USERS)] == "failed"
        opened = wiring.open_for_queries(log)
        with pytest.raises(ConfigurationError, match="changes of it are missing"):
            opened.current(str(USERS))
        delivered = TargetDelivery(opened, "log", self.target, Selection.parse(["*.*"]), lambda: None).deliver().tables
        (problem,) = (one for one in delivered if one.problem)
        assert (problem.table, "missing" in problem.problem) == (str(USERS), True)
        assert "cdcflow backfill shop.users" in problem.remedy
        assert {row["id"] for row in self.target.rows[ORDERS]} == {id_ for id_, _ in self.source_rows(ORDERS)}
        entry = {"tables": {str(USERS): known.to_status(USERS, 0)}}
        (remark,) = (one for one in remarks(entry, {}, {}) if one.table == str(USERS))
        assert "are missing since" in remark.text

    def assert_equal(self) -> None:
        self.merge()
        found = local.read_cut(self.folder / "warehouse")
        assert {name: rows_of(found[name]) for name in found} == {
            str(table): self.source_rows(table) for table in (USERS, ORDERS)
        }
        opened = wiring.open_for_queries(self.folder / "log")
        delivered = TargetDelivery(opened, "log", self.target, Selection.parse(["*.*"]), lambda: None).deliver().tables
        assert not [one for one in delivered if one.problem]
        assert {row["id"] for row in self.target.rows[USERS]} == {id_ for id_, _ in self.source_rows(USERS)}


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["note"]) for row in table.select(["id", "note"]).to_pylist())


@pytest.mark.parametrize("spool_rows", [1000, 3])
def test_table_with_a_row_that_cannot_leave_stops_no_other_and_is_whole_again_by_the_remedy(
    tmp_path: Path, spool_rows: int
) -> None:
    """Also if the row is in a large transaction; after restarts; with changes while it is failed: rows deleted
    and inserted then are right afterwards."""
    shop = TwoTables(tmp_path, spool_rows)
    shop.write("1", "2", "3", "4", "5")

    def changes() -> None:
        shop.write("6", first=6)
        shop.write("7", SECRET, "8", "9", first=7)
        shop.write("10", first=11)
        gone = shop.database.begin()
        gone.delete(USERS, lambda row: row["id"] in (2, 11))
        gone.update(USERS, {"note": "33"}, lambda row: row["id"] == 3)
        gone.commit()

    shop.capture(STRICT, changes=changes)
    assert shop.known().gap is not None
    shop.assert_named_and_hidden()
    missed = shop.known().missed
    for number in (20, 21):
        shop.capture(STRICT, changes=partial(shop.write, str(number), first=number))
        shop.assert_named_and_hidden()
    assert shop.known().missed == missed, "the place is where it began"
    shop.capture(MENDED, Orders(backfill=(str(USERS),)), changes=lambda: shop.write("30", first=30))
    assert (shop.known().state, shop.known().gap) == ("done", None)
    shop.assert_equal()


@pytest.mark.parametrize("rules", [STRICT, {"where": "note = 'none'"}], ids=["failed", "filtered"])
def test_large_transaction_without_a_row_that_leaves_keeps_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]
) -> None:
    """An archive job of a table that fails, or of other tenants, would otherwise fill the disk until the next start."""
    shop = TwoTables(tmp_path, spool_rows=3)
    shop.write("1")
    opened: list[str] = []
    open_spool = Files.open_spool

    def opens(log: Files) -> SpoolFile:
        spool = open_spool(log)
        opened.append(spool.name)
        return spool

    def changes() -> None:
        for first in (10, 20):
            large = shop.database.begin()
            large.insert(USERS, *({"id": first + n, "note": SECRET if n == 3 else "5"} for n in range(8)))
            large.commit()

    def is_captured() -> bool:
        reached = attempt.durable_position
        return reached is not None and number_of(reached) >= shop.database.end

    shop.capture(rules)
    monkeypatch.setattr(Files, "open_spool", opens)
    changes()
    with shop.attempt(rules) as attempt:
        attempt.run(is_captured)
        assert len(opened) == 2
        assert list((tmp_path / "log" / "spool").iterdir()) == []
    shop.capture(rules, changes=partial(shop.write, "2", first=40))
    assert shop.known().lacks_changes is (rules is STRICT)


@pytest.mark.parametrize("event", ["table failed", "capture started"])
def test_table_fails_in_the_log_before_any_row_without_its_changes(tmp_path: Path, event: str) -> None:
    """An attempt that ends between any two steps leaves a log in which the table is whole, or failed."""
    shop = TwoTables(tmp_path)
    shop.write("1", "2")
    shop.capture(STRICT, changes=lambda: shop.write("3", first=3))
    shop.write(SECRET, first=4)
    shop.write("5", first=5)

    def kill(told: str) -> None:
        if told == event:
            raise Killed

    with pytest.raises(Killed), shop.attempt(STRICT, on_event=kill) as attempt:
        attempt.run(lambda: False)
    assert shop.known().lacks_changes is (event == "table failed")
    if shop.known().lacks_changes:
        ((missing, _),) = shop.known().missed
        assert missing == reader.newest_checkpoint(tmp_path / "log").next_offset, "no later row"
    shop.capture(STRICT)
    shop.assert_named_and_hidden()
    shop.capture(MENDED, Orders(backfill=(str(USERS),)))
    shop.assert_equal()


@pytest.mark.parametrize("keep_rows", [False, True])
def test_table_that_lacks_changes_is_not_read_again_with_all_others(tmp_path: Path, keep_rows: bool) -> None:
    """Its settings may read it without an error and wrongly, for example after columns exchanged their names. Other
    settings, or its name in a command, are an operator's word for it."""
    shop = TwoTables(tmp_path)
    shop.write("1", "2")
    shop.capture(STRICT, changes=lambda: shop.write(SECRET, first=4))
    gone = shop.database.begin()
    gone.delete(USERS, lambda row: row["note"] == SECRET)
    gone.commit()
    lost = Orders(accept_history_loss=True, keep_rows=keep_rows)
    failed = shop.known()
    shop.capture(STRICT, lost, changes=lambda: shop.write("5", first=5))
    assert shop.known() == failed
    assert ("table failed", {"table": str(USERS), "reason": failed.reason}) in shop.events
    if not keep_rows:
        shop.assert_named_and_hidden()
    for orders in (Orders(backfill=()), replace(lost, backfill=())):
        with pytest.raises(ConfigurationError, match=r"changes of shop\.users could not leave the source"):
            shop.capture(STRICT, orders)
    shop.capture(MENDED, lost, changes=lambda: shop.write("6", first=6))
    assert (shop.known().state, shop.known().gap) == ("done", None)
    shop.capture(MENDED, Orders(backfill=()), changes=lambda: shop.write("7", first=7))
    shop.assert_equal()


def test_past_of_a_failed_table_stays_whole_and_its_gap_stays_a_gap(tmp_path: Path) -> None:
    """Queries at earlier offsets of the same segment, and at those between failure and the end of the next backfill."""
    shop = TwoTables(tmp_path)
    shop.write("1", "2")
    shop.capture(STRICT)

    def changes() -> None:
        shop.write("3", first=3)
        shop.write(SECRET, first=4)

    shop.capture(STRICT, changes=changes)
    ((missing, _),) = shop.known().missed
    shop.capture(STRICT, changes=lambda: shop.write("5", first=5))
    shop.capture(MENDED, Orders(backfill=(str(USERS),)))
    opened = wiring.open_for_queries(tmp_path / "log")
    end = opened.now().offset
    states = [opened.known.standing(USERS, offset).is_whole for offset in range(1, end + 1)]
    assert states[missing - 2], "just before"
    assert not any(states[missing - 1 : shop.known().since])
    assert states[-1]


def test_planted_fault_is_noticed_by_these_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop the changes without recording it: the table would be shown as current."""
    from cdcflow.capture.interleave.window_sequence import WindowSequence

    monkeypatch.setattr(WindowSequence, "lose_changes", lambda self, refused: None)
    shop = TwoTables(tmp_path)
    shop.write("1")
    shop.capture(STRICT, changes=lambda: shop.write(SECRET, first=4))
    with pytest.raises(AssertionError):
        shop.assert_named_and_hidden()


def test_table_that_fails_without_another_row_in_the_log_is_hidden_at_once(tmp_path: Path) -> None:
    """On a quiet source no segment may be sealed for hours."""
    shop = TwoTables(tmp_path)
    shop.write("1", "2")
    shop.capture(STRICT)
    shop.merge()
    assert str(USERS) in local.read_cut(tmp_path / "warehouse")

    def changes() -> None:
        alone = shop.database.begin()
        alone.insert(USERS, {"id": 9, "note": SECRET})
        alone.commit()

    shop.capture(STRICT, changes=changes)
    shop.assert_named_and_hidden()


def test_renamed_column_with_a_policy_fails_its_table_where_columns_have_no_numbers(tmp_path: Path) -> None:
    """While it is captured, and at starts after it: those do not stop, with the same settings or corrected ones."""
    shop = TwoTables(tmp_path)
    shop.write("1", "2")
    rules: dict[str, Any] = {"columns": {"note": "drop"}}
    shop.capture(rules)
    shop.database.rename_column(USERS, "note", "remark")
    transaction = shop.database.begin()
    transaction.insert(ORDERS, {"id": 7, "note": "after"})
    transaction.commit()
    shop.capture(rules)
    assert not shop.known().lacks_changes, "no row has the new shape yet"
    transaction = shop.database.begin()
    transaction.insert(USERS, {"id": 3, "remark": SECRET})
    transaction.insert(ORDERS, {"id": 8, "note": "with it"})
    transaction.commit()
    for _ in range(2):
        shop.capture(rules)
        shop.assert_named_and_hidden()
    with pytest.raises(ConfigurationError, match="no column nota"):
        shop.capture({"columns": {"note": "drop", "nota": "drop"}})
    mended: dict[str, Any] = {"columns": {"note": "drop", "remark": "drop"}, "optional": ["note", "remark"]}
    shop.capture(mended)
    assert shop.known().lacks_changes, "only the settings are right, and no row has been read"
    shop.capture(mended, Orders(backfill=(str(USERS),)))
    found = wiring.open_for_queries(tmp_path / "log").current(str(USERS))
    assert (found.column("id").to_pylist(), found.schema.names) == ([1, 2, 3], ["id", "_offset"])


GUESTS = TableId("shop", "guests")


@pytest.mark.parametrize("mended", ["its policies", "none"])
def test_new_table_that_may_be_one_with_policies_fails_alone_until_it_is_named(tmp_path: Path, mended: str) -> None:
    """A renamed table would leave without its policies. Others are captured, and a restart, at which it is no longer
    new, changes nothing."""
    shop = TwoTables(tmp_path)
    shop.write(SECRET, SECRET)
    rules: dict[str, Any] = {"columns": {"note": "drop"}}
    shop.capture(rules)
    shop.database.rename((USERS, GUESTS))
    for number in (10, 20, 30):
        orders = Orders(backfill=(str(GUESTS),)) if number == 30 else None
        shop.capture(rules, orders, changes=partial(shop.write, SECRET, first=number, table=GUESTS))
        known = shop.known(GUESTS)
        assert (known.state, known.rows) == ("failed", 0)
        assert "if it is shop.users, give it its policies; otherwise name it in tables" in str(known.reason)
        assert orders or "cdcflow backfill shop.guests" in str(known.reason)
        rows = [table.id for table, _, _ in reader.read_rows(tmp_path / "log")]
        assert GUESTS not in rows
        assert shop.captured(ORDERS) == {id_ for id_, _ in shop.source_rows(ORDERS)}
    settings = wiring.capture_settings(shop.config(rules))
    with closing(settings.open_source()) as source:
        checkpoint = reader.newest_checkpoint(tmp_path / "log")
        source.prepare(checkpoint, log_id(shop.config(rules)))
        for _ in range(2):  # at the start, and when a running capture looks for new tables
            assert GUESTS in {table.id for table in source.tables()}
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    named = {str(USERS): rules, str(GUESTS): rules if mended == "its policies" else {"columns": {}}}
    shop.capture({}, Orders(backfill=(str(GUESTS),)), named=named)
    assert shop.known(GUESTS).state == "done"
    assert shop.captured(GUESTS) == {1, 2, 10, 20, 30}
    schema = wiring.open_for_queries(tmp_path / "log").current(str(GUESTS)).schema.names
    assert ("note" in schema) is (mended == "none")
    shop.capture({}, named=named, changes=partial(shop.write, "5", first=40, table=GUESTS))
    assert 40 in shop.captured(GUESTS)


def exchange(shop: TwoTables, one: str, other: str) -> None:
    for old, new in ((one, "x"), (other, one), ("x", other)):
        shop.database.rename_column(USERS, old, new)


@pytest.mark.parametrize("keep_rows", [False, True])
@pytest.mark.parametrize("mended", ["corrected", "listed"])
def test_names_that_may_have_been_exchanged_in_lost_history_fail_their_table(
    tmp_path: Path, keep_rows: bool, mended: str
) -> None:
    """Where columns have no numbers, nothing else shows that there was a statement. At later starts, too."""
    shop = TwoTables(tmp_path)
    shop.database.add_column(USERS, "more", TEXT)
    shop.write("1", "2")
    rules: dict[str, Any] = {"columns": {"note": "drop"}}
    shop.capture(rules)
    exchange(shop, "note", "more")
    lost = Orders(accept_history_loss=True, keep_rows=keep_rows)
    shop.capture(rules, lost, changes=lambda: shop.write("5", first=5))
    for number in (6, 7):
        assert shop.known().state == "failed"
        assert "may have exchanged their names" in str(shop.known().reason)
        assert "`optional: [note]`" in str(shop.known().reason)
        shop.capture(rules, Orders(backfill=(str(USERS),)), changes=partial(shop.write, "6", first=number))
    if mended == "corrected":
        rules = {"columns": {"more": "drop"}}
    else:
        rules["optional"] = ["note"]
    shop.capture(rules, Orders(backfill=(str(USERS),)), changes=lambda: shop.write("8", first=8))
    assert shop.known().state == "done"
    assert shop.captured(USERS) == {1, 2, 5, 6, 7, 8}

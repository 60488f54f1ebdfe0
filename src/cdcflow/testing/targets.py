"""The suite that every target must pass: a change is applied completely or not at all, even if the process is killed.

class TestMydb(TargetContract):
    @pytest.fixture
    def target_kit(self, tmp_path):
        return MydbKit(tmp_path)
"""

from __future__ import annotations

import multiprocessing
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.targets.port import Overtaken, ReadableTarget, TableChange, TargetTables

KILLS = 12
ROWS = 3000
"""How many rows the change has during which processes are killed."""


class TargetKit(ABC):
    """An empty target, and how a test reads it."""

    @abstractmethod
    def open(self) -> TargetTables:
        """Open a new connection to the target, always the same target."""

    @abstractmethod
    def rows(self, table: Table) -> list[dict[str, Any]]:
        """Return the target's rows of a table, by column, as its readers see them, in any order."""

    def as_stored(self, value: Any) -> Any:
        """Return what `rows` returns for a value. Override it if the target has other types."""
        return value


def table_of(name: str = "items", key: Sequence[str] = ("id",), **types: pa.DataType) -> Table:
    """Return a table with these columns; without any it has `id` and `name`."""
    given = types or {"id": pa.int32(), "name": pa.string()}
    columns = tuple(Column(of, n, ColumnType(str(kind), kind)) for n, (of, kind) in enumerate(given.items(), 1))
    return Table(TableId("shop", name), 1, columns, tuple(key))


def change_of(
    table: Table,
    rows: Sequence[Mapping[str, Any]] = (),
    deleted: Sequence[Mapping[str, Any]] = (),
    *,
    after: str | None,
    place: str,
    is_whole: bool = False,
) -> TableChange:
    """Return a change with these rows, and with the keys of these deleted ones."""
    keys = pa.schema([table.row_schema.field(name) for name in table.key])
    return TableChange(
        table,
        pa.Table.from_pylist(list(rows), table.row_schema),
        pa.Table.from_pylist(list(deleted), keys),
        is_whole,
        after,
        place,
    )


ITEMS = table_of()
ONE, TWO, THREE = ({"id": n, "name": name} for n, name in ((1, "one"), (2, "two"), (3, "three")))


class TargetContract:
    """The tests that every target must pass. Subclass it, and return your kit from `target_kit`."""

    @pytest.fixture
    def target_kit(self) -> TargetKit:
        pytest.fail("override the fixture target_kit in your class, and return a TargetKit from it")

    def begin(self, kit: TargetKit, table: Table = ITEMS, rows: Sequence[Mapping[str, Any]] = (ONE, TWO)) -> None:
        """Apply this table as a whole, so that the target has it at place `a`."""
        self.apply(kit, change_of(table, rows, after=None, place="a", is_whole=True))

    def apply(self, kit: TargetKit, change: TableChange) -> None:
        with closing(kit.open()) as target:
            target.apply(change)

    def check(self, kit: TargetKit, table: Table, rows: Sequence[Mapping[str, Any]], place: str | None) -> None:
        """Check that the target has exactly these rows, and this place."""
        exact = pa.Table.from_pylist(list(rows), table.row_schema).to_pylist()
        expected = [{name: kit.as_stored(value) for name, value in row.items()} for row in exact]
        assert sorted(map(_text, kit.rows(table))) == sorted(map(_text, expected))
        assert self.place(kit, table) == place

    def place(self, kit: TargetKit, table: Table) -> str | None:
        with closing(kit.open()) as target:
            return target.places().get(table.id)

    def test_new_target_has_no_places(self, target_kit: TargetKit) -> None:
        """Without a place, every table is applied whole."""
        with closing(target_kit.open()) as target:
            assert not target.places()

    def test_whole_table_is_its_rows(self, target_kit: TargetKit) -> None:
        """Another connection sees rows and place."""
        self.begin(target_kit)
        self.check(target_kit, ITEMS, [ONE, TWO], "a")

    def test_change_replaces_adds_and_deletes_rows(self, target_kit: TargetKit) -> None:
        """Rows are replaced and deleted by their key."""
        self.begin(target_kit)
        changed = {"id": 1, "name": "uno"}
        self.apply(target_kit, change_of(ITEMS, [changed, THREE], [{"id": 2}], after="a", place="b"))
        self.check(target_kit, ITEMS, [changed, THREE], "b")

    def test_row_that_is_deleted_and_absent_is_no_error(self, target_kit: TargetKit) -> None:
        """A row that is deleted may be absent: it was inserted and deleted between two places."""
        self.begin(target_kit)
        self.apply(target_kit, change_of(ITEMS, [], [{"id": 7}], after="a", place="b"))
        self.check(target_kit, ITEMS, [ONE, TWO], "b")

    def test_change_without_rows_moves_the_place(self, target_kit: TargetKit) -> None:
        """The place of a table without changes must advance too, or it would fall behind what the log still has."""
        self.begin(target_kit)
        self.apply(target_kit, change_of(ITEMS, after="a", place="b"))
        self.check(target_kit, ITEMS, [ONE, TWO], "b")

    def test_change_that_is_applied_again_is_refused(self, target_kit: TargetKit) -> None:
        """A change may be sent again because the answer to the first attempt was lost; it must be applied once."""
        self.begin(target_kit)
        change = change_of(ITEMS, [THREE], [{"id": 1}], after="a", place="b")
        self.apply(target_kit, change)
        with pytest.raises(Overtaken):
            self.apply(target_kit, change)
        self.check(target_kit, ITEMS, [TWO, THREE], "b")

    @pytest.mark.parametrize("after", [None, "other"])
    @pytest.mark.parametrize("is_whole", [False, True])
    def test_change_from_another_place_is_refused(
        self, target_kit: TargetKit, after: str | None, is_whole: bool
    ) -> None:
        """If two processes deliver to one target, the one that is too late must change nothing."""
        self.begin(target_kit)
        with pytest.raises(Overtaken):
            self.apply(target_kit, change_of(ITEMS, [THREE], after=after, place="b", is_whole=is_whole))
        self.check(target_kit, ITEMS, [ONE, TWO], "a")

    def test_change_of_a_table_without_a_place_is_refused(self, target_kit: TargetKit) -> None:
        """If a table was removed from the target, a change of some rows must be refused; cdcflow then applies the whole
        table."""
        with pytest.raises(Overtaken):
            self.apply(target_kit, change_of(ITEMS, [THREE], after="a", place="b"))
        assert self.place(target_kit, ITEMS) is None

    def test_two_open_connections_cannot_both_apply(self, target_kit: TargetKit) -> None:
        """Two connections may have begun at the same place: only the first to apply a change may succeed."""
        self.begin(target_kit)
        with closing(target_kit.open()) as first, closing(target_kit.open()) as second:
            assert first.places() == second.places()
            first.apply(change_of(ITEMS, [THREE], after="a", place="b"))
            with pytest.raises(Overtaken):
                second.apply(change_of(ITEMS, [], [{"id": 1}], after="a", place="c"))
        self.check(target_kit, ITEMS, [ONE, TWO, THREE], "b")

    def test_whole_table_replaces_rows_columns_and_key(self, target_kit: TargetKit) -> None:
        """A table is applied whole after DDL at the source, or when it was read again."""
        self.begin(target_kit)
        other = table_of(key=("code", "id"), id=pa.int64(), code=pa.string(), price=pa.decimal128(10, 2))
        row = {"id": 1, "code": "x", "price": Decimal("1.50")}
        self.apply(target_kit, change_of(other, [row], after="a", place="b", is_whole=True))
        self.check(target_kit, other, [row], "b")
        self.apply(target_kit, change_of(other, [], [{"code": "x", "id": 1}], after="b", place="c"))
        self.check(target_kit, other, [], "c")

    def test_whole_table_may_be_empty(self, target_kit: TargetKit) -> None:
        """A table is empty after a truncate."""
        self.begin(target_kit)
        self.apply(target_kit, change_of(ITEMS, after="a", place="b", is_whole=True))
        self.check(target_kit, ITEMS, [], "b")

    def test_table_without_a_key_has_equal_rows(self, target_kit: TargetKit) -> None:
        """A table without a key is always applied whole."""
        table = table_of(key=())
        self.begin(target_kit, table, [ONE, ONE, {"id": None, "name": None}])
        self.check(target_kit, table, [ONE, ONE, {"id": None, "name": None}], "a")

    def test_tables_have_separate_rows_and_places(self, target_kit: TargetKit) -> None:
        """Each table has its own place, so that a table that stops does not stop the others."""
        other = table_of("others")
        self.begin(target_kit)
        self.begin(target_kit, other, [THREE])
        self.apply(target_kit, change_of(other, [], [{"id": 3}], after="a", place="b"))
        self.check(target_kit, ITEMS, [ONE, TWO], "a")
        self.check(target_kit, other, [], "b")

    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            (pa.bool_(), [True, False]),
            (pa.int64(), [-(2**63), 2**63 - 1, 0]),
            (pa.float64(), [0.5, -1e300, float("inf")]),
            (pa.string(), ["", " ", 'it\'s "quoted" \\', "日本\n", "'; DROP TABLE x; --"]),
            (pa.binary(), [b"", b"\0\xff"]),
            (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal(-(10**27))]),
            (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
            (pa.timestamp("us"), [datetime(2026, 1, 1, 12, 30, 0, 1)]),
            (pa.timestamp("us", tz="UTC"), [datetime(2026, 1, 1, 12, 30, tzinfo=UTC)]),
        ],
        ids=str,
    )
    def test_values_are_exact(self, target_kit: TargetKit, kind: pa.DataType, values: Sequence[Any]) -> None:
        """Every value must be stored exactly, and NULL must differ from each of these values."""
        table = table_of(id=pa.int32(), value=kind)
        rows = [{"id": n, "value": value} for n, value in enumerate([None, *values])]
        self.begin(target_kit, table, rows[:1])
        self.apply(target_kit, change_of(table, rows[1:], after="a", place="b"))
        self.check(target_kit, table, rows, "b")

    def test_rows_that_are_read_back_are_those_at_their_place(self, target_kit: TargetKit) -> None:
        """`cdcflow verify --targets` compares the rows that a target returns with the log, so their types must be ones
        that Arrow casts to the log's."""
        exact = {"amount": pa.decimal128(10, 2), "day": pa.date32(), "at": pa.timestamp("us", tz="UTC")}
        table = table_of(id=pa.int32(), word=pa.string(), flag=pa.bool_(), **exact)
        values: dict[str, object] = {"word": "it's", "flag": True, "amount": Decimal("1.50"), "day": date(2026, 1, 31)}
        at = datetime(2026, 1, 1, 12, 30, 0, 5, tzinfo=UTC)
        rows: list[Mapping[str, Any]] = [{"id": 1, **values, "at": at}, {"id": 2}]
        with closing(target_kit.open()) as target:
            if not isinstance(target, ReadableTarget):  # reading is optional for a target
                pytest.skip("this target cannot be read; `cdcflow verify` names its tables as not compared")
            target.apply(change_of(table, rows, after=None, place="a", is_whole=True))
            found = target.read(table)
            expected = pa.Table.from_pylist(rows, table.row_schema).to_pylist()
            names = [field.name for field in table.row_schema if field.name in found.rows.column_names]
            back = found.rows.select(names).cast(pa.schema([table.row_schema.field(name) for name in names]))
            assert sorted(map(_text, back.to_pylist())) == sorted(_text({n: r[n] for n in names}) for r in expected)
            assert found.place == "a"
            target.apply(change_of(table, after="a", place="b", is_whole=True))
            assert (target.read(table).rows.num_rows, target.read(table).place) == (0, "b")

    @pytest.mark.parametrize("name", ['a"b', "it's", "select", "x; DROP TABLE items", "Ünï", "`", "a.b", "with blank"])
    def test_names_are_data(self, target_kit: TargetKit, name: str) -> None:
        """Names of tables and columns come from the source, so the target must quote them, whatever they contain."""
        table = table_of(name, key=(name,), **{name: pa.int32(), "plain": pa.string()})
        self.begin(target_kit, table, [{name: 1, "plain": "x"}])
        self.apply(target_kit, change_of(table, [{name: 2, "plain": "y"}], [{name: 1}], after="a", place="b"))
        self.check(target_kit, table, [{name: 2, "plain": "y"}], "b")

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_process_that_is_killed_leaves_a_change_whole_or_absent(
        self, target_kit: TargetKit, is_whole: bool
    ) -> None:
        """Wherever the process dies, the target has all of a change or none of it, and the next process continues at
        the place that it finds."""
        rows, place = list[Mapping[str, Any]]([ONE, TWO]), "a"
        self.begin(target_kit)
        for number in range(KILLS):
            new = [{"id": n, "name": f"{number}-{n}"} for n in range(10, 10 + ROWS)]
            change = change_of(ITEMS, new, after=place, place=f"b{number}", is_whole=is_whole)
            _kill_while(target_kit, change, 0.004 * number)
            if self.place(target_kit, ITEMS) == change.place:
                rows, place = [*([] if is_whole else rows[:2]), *new], change.place
            self.check(target_kit, ITEMS, rows, place)
        self.apply(target_kit, change_of(ITEMS, [THREE], after=place, place="c", is_whole=True))
        self.check(target_kit, ITEMS, [THREE], "c")


def _kill_while(kit: TargetKit, change: TableChange, after_s: float) -> None:
    """Kill a process this long after it has begun to apply a change."""
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    process = context.Process(target=_apply, args=(kit, change, begun))
    process.start()
    begun.wait(60)
    time.sleep(after_s)
    process.kill()
    process.join()


def _apply(kit: TargetKit, change: TableChange, begun: Any) -> None:
    target = kit.open()
    begun.set()
    target.apply(change)


def _text(row: Mapping[str, Any]) -> str:
    return repr(sorted(row.items()))

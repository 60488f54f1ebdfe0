"""Names of tables as servers compare them: by case, in lower case, or as given."""

from __future__ import annotations

import pytest
from tests.support.mysql.binlog_bytes import Log, simple
from tests.support.mysql.binlog_decoder import TestTables, one, reader, rows_of

from cdcflow.capture.interleave.messages import RowsFilled
from cdcflow.model.table import TableId
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.mysql.catalog import CaptureSelection
from cdcflow.sources.mysql.table_names import TableNames, lower_name


class LowerTables(TestTables):
    """The catalog has `Orders` of `shop`, as given; the log's rows have it in lower case (mode 2)."""

    def catalog_name(self, table: TableId) -> TableId:
        key = TableNames(2).key(table)
        return TableId("shop", "Orders") if key == TableId("shop", "orders") else key


@pytest.mark.parametrize(
    ("said", "emptied", "filled"),
    [
        ("TRUNCATE TABLE ORDERS", 1, set()),
        ("DROP TABLE SHOP.orders", 1, set()),
        ("ALTER TABLE orders RENAME TO Orders, ADD d int NOT NULL", 0, {"Orders"}),
        ("RENAME TABLE orders TO Elsewhere.x", 1, set()),
        ("ALTER TABLE ordeRS ADD d int", 0, set()),
    ],
)
def test_rows_and_statements_are_of_the_table_that_the_catalog_names(said: str, emptied: int, filled: set[str]) -> None:
    """The log's rows, a statement and the catalog may each write a name in another way."""
    log = Log()
    one(log, 1, table=simple("orders"))
    log.standalone(said)
    found = reader(log, tables=LowerTables())
    found.feed(log.dump())
    assert [(r[0], r[1]) for r in rows_of(found)] == [("Orders", "c"), *[("Orders", "t")] * emptied]
    assert {e.table.name for e in found.events if isinstance(e, RowsFilled)} == filled


def test_settings_are_compared_as_the_catalog_keeps_names() -> None:
    """In lower case (1) settings are converted; a table's exclusion must not fail because of its case."""
    wanted = CaptureSelection(Selection.parse(["Shop.*", "!Shop.Secret"]), TableId("Cdc", "Marks"), False)
    for mode, selected in ((0, False), (1, True), (2, False)):
        kept = wanted.as_stored(TableNames(mode))
        assert kept.selects(TableId("shop", "orders")) is selected
        assert not kept.selects(TableId("shop", "secret"))
        assert kept.marks == (TableId("cdc", "marks") if mode == 1 else TableId("Cdc", "Marks"))


def test_letters_are_lowered_one_by_one() -> None:
    """A sigma at a word's end stays what it is elsewhere; a capital i with a dot is one letter."""
    assert (lower_name("ΤΕΛΟΣ"), lower_name("İX"), lower_name("ABC")) == ("τελοσ", "ix", "abc")
    assert TableNames(0).key(TableId("A", "B")) == TableId("A", "B")

"""Shadow tables that take a name again, histories of other tables, and keys that are sets of labels or times."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from tests.support.mysql.binlog_bytes import Log
from tests.support.mysql.binlog_decoder import TestTables, one, reader, rows_of

from cdcflow.capture.interleave.messages import RowsFilled
from cdcflow.model.change import KeySet
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.keys import table_key, value_literal
from cdcflow.sources.mysql.types.columns import ServerColumn, TypeCode


@pytest.mark.parametrize(
    "before",
    [
        # Renamed to a name that looks like a tool's left-over, and recreated with other columns.
        ["RENAME TABLE _t_gho TO __t_gho_del", "CREATE TABLE _t_gho (id int PRIMARY KEY)"],
        ["ALTER TABLE _t_gho RENAME TO __t_gho_old", "CREATE TABLE _t_gho (id int PRIMARY KEY, v text)"],
    ],
)
def test_a_shadow_table_that_got_another_name_is_a_copy_no_more(before: list[str]) -> None:
    """M37: the next table of that name may hold less, and the captured table would be taken as complete."""
    log = Log()
    one(log, 1)
    for said in ["CREATE TABLE _t_gho LIKE t", *before, "RENAME TABLE t TO _t_del, _t_gho TO t"]:
        log.standalone(said)
    found = reader(log)
    found.feed(log.dump())
    assert [(e.table.name, e.swapped) for e in found.events if isinstance(e, RowsFilled)] == [("t", False)]


@pytest.mark.parametrize(
    ("value", "sql"), [(["z", "a"], "5"), (["b"], "2"), ([], "0"), ("z,b", "3"), ("", "0"), (["gone", "a"], "4")]
)
def test_a_set_in_a_key_is_the_number_of_its_labels(value: object, sql: str) -> None:
    """W19: the server orders and compares it by its bits, however the log writes it."""
    column = ServerColumn("s", TypeCode.SET, 1, False, collation=45, labels=("z", "b", "a"))
    assert value_literal(column, value) == sql


@pytest.mark.parametrize(
    ("time", "sql"),
    [
        ({}, "'0:00:00.000000'"),
        ({"seconds": 59, "microseconds": 999_999}, "'0:00:59.999999'"),
        ({"seconds": 60}, "'0:01:00.000000'"),
        ({"seconds": 3599}, "'0:59:59.000000'"),
        ({"seconds": 3600}, "'1:00:00.000000'"),
        ({"hours": 838, "minutes": 59, "seconds": 59}, "'838:59:59.000000'"),
        ({"microseconds": -1}, "'-0:00:00.000001'"),
        ({"seconds": -3600}, "'-1:00:00.000000'"),
        ({"days": 1, "seconds": -1}, "'23:59:59.000000'"),
    ],
)
def test_a_time_in_a_key_is_the_server_s_text_of_it(time: dict[str, int], sql: str) -> None:
    """A second more or less is another key, and the row is not found."""
    column = ServerColumn("t", TypeCode.TIME, 6, False)
    assert value_literal(column, datetime.timedelta(**time)) == sql


def test_history_of_a_table_that_is_not_captured_is_ignored() -> None:
    """Only rows of captured tables are mixed with it."""
    log = Log("mariadb")
    one(log, 1)
    log.standalone("ALTER TABLE elsewhere.h ADD SYSTEM VERSIONING")
    one(log, 2)
    found = reader(log, tables=TestTables(versioned=frozenset({TableId("elsewhere", "h")})))
    found.feed(log.dump())
    assert [row[2]["id"] for row in rows_of(found)] == [1, 2]


def test_keys_of_one_column_are_looked_for_without_parentheses() -> None:
    """As users write it. Of several columns each is compared alone: servers convert less in a list of rows."""
    column = ServerColumn("a", TypeCode.LONG, 0, False)
    key = table_key((column,), "PRIMARY")
    assert list(key.among(KeySet(pa.table({"a": [5, 7]})))) == ["`a` IN (5, 7)"]
    both = table_key((column, ServerColumn("b", TypeCode.LONG, 0, False)), "PRIMARY")
    assert list(both.among(KeySet(pa.table({"a": [5, 7], "b": [1, 2]})))) == [
        "(`a` = 5 AND `b` = 1) OR (`a` = 7 AND `b` = 2)"
    ]
    assert list(key.among(KeySet(pa.table({"a": pa.array([], pa.int64())})))) == []


@pytest.mark.parametrize("said", ["ALTER TABLE t MODIFY w bigint", "ALTER TABLE t MODIFY IF EXISTS gone bigint"])
def test_column_that_the_log_never_described_is_not_taken_for_wider(said: str) -> None:
    """Its previous type is unknown: the table is read again."""
    log = Log()
    one(log, 1)
    log.standalone(said)
    wider = [ServerColumn(name, TypeCode.LONG, 0, nullable=True) for name in ("id", "v", "w")]
    found = reader(log, tables=TestTables(columns_now={TableId("shop", "t"): wider}))
    found.feed(log.dump())
    assert [e.table.name for e in found.events if isinstance(e, RowsFilled)] == ["t"]


@pytest.mark.parametrize(
    ("said", "filled"),
    [
        ("ALTER TABLE t MODIFY v varchar(900)", []),
        ("ALTER TABLE t CHANGE V v varchar(900)", []),
        ("ALTER TABLE t MODIFY V varchar(900)", ["t"]),
        ("ALTER TABLE t CHANGE v V varchar(900)", ["t"]),
    ],
)
def test_a_column_whose_name_gets_another_case_is_read_again(said: str, filled: list[str]) -> None:
    """To the server it is the same name; to readers of the log it is another column, with no value in old rows."""
    log = Log()
    one(log, 1)
    log.standalone(said)
    found = reader(log)
    found.feed(log.dump())
    assert [e.table.name for e in found.events if isinstance(e, RowsFilled)] == filled

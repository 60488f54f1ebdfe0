"""Shadow tables that take a name again, and keys that are sets of labels."""

from __future__ import annotations

import pytest
from binlogbytes import Log
from binlogreading import one, reader

from cdcflow.interleave.messages import RowsFilled
from cdcflow.sources.mysql.keys import value_literal
from cdcflow.sources.mysql.types import ServerColumn, TypeCode


@pytest.mark.parametrize(
    "before",
    [
        # Put aside under a name that looks like a left-over of its own, and made anew with other columns.
        ["RENAME TABLE _t_gho TO __t_gho_del", "CREATE TABLE _t_gho (id int PRIMARY KEY)"],
        ["ALTER TABLE _t_gho RENAME TO __t_gho_old", "CREATE TABLE _t_gho (id int PRIMARY KEY, v text)"],
    ],
)
def test_a_shadow_table_that_got_another_name_is_a_copy_no_more(before: list[str]) -> None:
    """M37: the next table of that name may hold less, and the captured table would be taken for whole."""
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

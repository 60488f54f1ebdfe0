"""Statements that a restart reads again, because an undecided XA transaction was prepared before them."""

from __future__ import annotations

import pytest
from tests.support.mysql.binlog_bytes import Log
from tests.support.mysql.binlog_decoder import T, decoded, one, rows_of
from tests.support.postgres.wire import transactions

from cdcflow.capture.interleave.messages import RowsFilled
from cdcflow.sources.mysql.position import BinlogPosition


@pytest.mark.parametrize(
    ("said", "filled"),
    [
        (["CREATE TABLE _t_gho LIKE t", "RENAME TABLE t TO _t_del, _t_gho TO t"], True),
        (["RENAME TABLE t TO _t_del, _t_gho TO t"], True),
        (["ALTER TABLE t ADD w int NOT NULL"], True),
        (["ALTER TABLE t IMPORT TABLESPACE"], True),
        (["TRUNCATE TABLE t"], False),
        (["RENAME TABLE t TO elsewhere.x"], False),
        (["DROP DATABASE shop"], False),
    ],
)
def test_statement_reported_before_a_restart_is_not_reported_after_it(said: list[str], filled: bool) -> None:
    """M45: a table would be read again, or emptied, for what happened before its rows were read."""
    log = Log()
    one(log, 1)
    log.gtid()
    log.query("XA START X'01',X'',1", "")
    log.insert(T, (7, "x"))
    log.query("XA END X'01',X'',1", "")
    log.xa_prepare(b"\x01")
    for text in said:
        log.standalone(text)
    log.table_ids.clear()
    one(log, 2)
    first = decoded(log)
    assert any(isinstance(e, RowsFilled) for e in first.events) is filled
    assert [row[1] for row in rows_of(first)][1:] in (["c"], ["t", "c"])
    position = transactions(first.events, first.spools)[-1][1]
    assert BinlogPosition.parse(position).xa is not None, "it resumes at the XA transaction and reads it again"
    one(log, 3)
    again = decoded(log, position)
    assert not any(isinstance(e, RowsFilled) for e in again.events)
    assert [(row[1], row[2]["id"]) for row in rows_of(again)] == [("c", 3)]

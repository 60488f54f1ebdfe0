"""Whether a source's position has everything up to another, in each way that a user may write one."""

from __future__ import annotations

import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Position
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition
from cdcflow.sources.postgres.lsn import Lsn, position_of
from cdcflow.wiring.table_queries import is_reached

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4c6b8d21-71ca-11e1-9e33-c80aa9429562"


def lsn(text: str) -> Position:
    return position_of(Lsn.parse(text))


def binlog(gtids: str) -> Position:
    return Position(BinlogPosition(BinlogFile("binlog.000003"), 77, gtids).text)


@pytest.mark.parametrize(
    ("position", "wanted", "reached"),
    [
        (lsn("0/16B3748"), "0/16B3748", True),
        (lsn("0/16B3748"), "0/16B3749", False),
        (lsn("1/0"), "0/FFFFFFFF", True),
        (binlog(""), "binlog.000003:77", True),
        (binlog(""), "binlog.000003:78", False),
        (binlog(""), "binlog.000002:900", True),
        (binlog(f"{A}:1-5:7"), f"{A}:7", True),
        (binlog(f"{A}:1-5:7"), f"{A}:6", False),
        (binlog(f"{A}:1-5,{B}:1-2"), f"{B}:1-2,{A}:3", True),
        (binlog(f"{A}:1-5"), f"{B}:1", False),
        (binlog("0-1-100,2-7-41"), "2-7-41", True),
        (binlog("0-1-100"), "0-1-101", False),
    ],
)
def test_reached(position: Position, wanted: str, reached: bool) -> None:
    assert is_reached(position, wanted) == reached


def test_nothing_is_reached_before_the_first_position() -> None:
    assert not is_reached(None, "0/1")


@pytest.mark.parametrize(
    ("position", "wanted"),
    [(lsn("0/1"), "yesterday"), (lsn("0/1"), "binlog.000001:4"), (binlog(""), "0/1")],
)
def test_other_kinds_are_refused(position: Position, wanted: str) -> None:
    with pytest.raises(ConfigurationError):
        is_reached(position, wanted)

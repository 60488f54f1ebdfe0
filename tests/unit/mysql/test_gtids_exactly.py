"""The edges of GTID sets and of positions: the least and the greatest numbers, tags, columns of GTIDs, coordinates."""

from __future__ import annotations

import numpy as np
import pytest

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.sources.mysql.gtids import Gtids, MariadbGtids, MysqlGtids, gtid_set
from cdcflow.sources.mysql.position import FIRST_EVENT, BinlogFile, BinlogPosition, coordinate

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4c6b8d21-71ca-11e1-9e33-c80aa9429562"
MOST = 2**63 - 1


def columns(*which: int, number: list[int] | None = None, sources: tuple[str, ...] = (A, B)) -> Gtids:
    numbers = list(range(5, 5 + len(which))) if number is None else number
    return Gtids(sources, np.array(which, np.int64), np.array(numbers, np.int64))


def test_gtids_in_columns_are_identified_by_their_place() -> None:
    """-1 has none; the first source is one like the others."""
    found = columns(0, -1, 1, 0)
    assert len(found) == 4
    assert [found.gtid_at(i) for i in range(4)] == [(A, 5), None, (B, 7), (A, 8)]
    part = found.part(1, 3)
    assert [part.gtid_at(i) for i in range(len(part))] == [None, (B, 7)]


@pytest.mark.parametrize(
    ("gtids", "run"),
    [
        (columns(0, 0, 0), (A, 5)),
        (columns(1, 1), (B, 5)),
        (columns(1), (B, 5)),
        (columns(0), (A, 5)),
        (columns(), None),
        (columns(-1, -1), None),
        (columns(-1), None),
        (columns(0, 1, 0), None),
        (columns(0, 0, number=[5, 5]), None),
        (columns(0, 0, number=[5, 7]), None),
        (columns(0, 0, 0, number=[5, 6, 8]), None),
        (columns(0, 0, number=[6, 5]), None),
    ],
)
def test_a_run_is_of_one_source_without_a_gap(gtids: Gtids, run: tuple[str, int] | None) -> None:
    """The quick way is right for such only."""
    assert gtids.run == run


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (f"{A}:1-{MOST}", f"{A}:1-{MOST}"),
        (f"{A}:1:3:5", f"{A}:1:3:5"),
        (f"{A}:5:3:4", f"{A}:3-5"),
        (f"{A}:1-9:2-3", f"{A}:1-9"),
        (f"{A}:2-3:1-9:10", f"{A}:1-10"),
        (f"{A}:1,{A}:3,{A}:2", f"{A}:1-3"),
        (f"{A}:{'t' * 32}:1", f"{A}:{'t' * 32}:1"),
        (f"{A}:_0:1,{A}:2", f"{A}:2:_0:1"),
        (f" , {A} : 1 ,, ", f"{A}:1"),
    ],
)
def test_mysql_set_is_read_in_any_notation(text: str, canonical: str) -> None:
    """The text of equal sets is the same."""
    assert gtid_set("mysql", text).text() == canonical


@pytest.mark.parametrize(
    "text",
    [
        f"{A}:1-{MOST + 1}",
        f"{A}:{MOST + 1}",
        f"{A}:0",
        f"{A}:{'t' * 33}:1",
        f"{A}:1a:1",
        f"{A.replace('-', '')}:1",
        f"{A}:1--2",
        f"{A}:1-x",
        f"{A}:x-1",
        f"{A}:",
        f"{{{A}}}:1",
    ],
)
def test_numbers_and_names_beyond_what_a_server_has_are_refused(text: str) -> None:
    """A set that is misread would skip transactions; the message does not repeat a page of it."""
    with pytest.raises(ConfigurationError) as refused:
        MysqlGtids.parse(text)
    assert repr(text) in str(refused.value)
    for size, shown in ((200, "x" * 200), (201, "x" * 200 + "…")):
        with pytest.raises(ConfigurationError) as refused:
            MysqlGtids.parse("x" * size)
        assert f"not a set of GTIDs: {shown!r}" in str(refused.value)


def test_what_is_in_a_mysql_set_and_what_is_beyond_it() -> None:
    """At each end of each interval."""
    mine = MysqlGtids.parse(f"{A}:3-5:9")
    assert [n for n in range(1, 12) if mine.contains(A, n)] == [3, 4, 5, 9]
    assert [n for n in range(1, 12) if mine.is_beyond(A, n)] == [10, 11]
    assert mine.is_beyond(B, 1)
    assert not mine.contains(B, 1)
    assert dict(mine.intervals()) == {A: [[3, 5], [9, 9]]}
    for text, covered in ((f"{A}:3-5", True), (f"{A}:4:9", True), ("", True), (f"{A}:2-3", False)):
        assert mine.covers(MysqlGtids.parse(text)) is covered
    for text in (f"{A}:5-6", f"{A}:3-9", f"{B}:1", f"{A}:3,{B}:1"):
        assert not mine.covers(MysqlGtids.parse(text))
    mine.add(A, 4)
    mine.add(A, 2)
    mine.add(A, 10)
    mine.add(A, 12)
    assert mine.text() == f"{A}:2-5:9-10:12"


def test_texts_of_a_run_grow_at_their_source_s_last_interval() -> None:
    """Whatever precedes and follows it, and where the run joins an interval or fills a gap before the last."""
    three = columns(0, 0, 0, number=[10, 11, 12])
    for before, expected in (
        (f"{A}:1-9,{B}:4", [f"{A}:1-10,{B}:4", f"{A}:1-11,{B}:4", f"{A}:1-12,{B}:4"]),
        (f"{A}:1-3:tag:7", [f"{A}:1-3:10:tag:7", f"{A}:1-3:10-11:tag:7", f"{A}:1-3:10-12:tag:7"]),
        ("", [f"{A}:10", f"{A}:10-11", f"{A}:10-12"]),
        (f"{A}:20", [f"{A}:10:20", f"{A}:10-11:20", f"{A}:10-12:20"]),
        (f"{A}:13", [f"{A}:10:13", f"{A}:10-11:13", f"{A}:10-13"]),
        (f"{A}:1-11", [f"{A}:1-11", f"{A}:1-11", f"{A}:1-12"]),
    ):
        for wanted in ([0, 1, 2], [1, 2], [0], [2], []):
            mine = MysqlGtids.parse(before)
            assert mine.texts(three, np.array(wanted, np.int64)) == [expected[i] for i in wanted]
            assert mine.text() == expected[2]


# ── MariaDB ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_mariadb_set_is_read_in_any_notation() -> None:
    """The last of a domain counts; domains are ordered as numbers."""
    assert gtid_set("mariadb", " 10-1-5 ,, 2-7-41 , 10-3-6").text() == "2-7-41,10-3-6"
    assert gtid_set("mariadb", "").text() == ""
    for text in ("0-1-", "-1-2", "0--1", "0-x-1", "1"):
        with pytest.raises(ConfigurationError, match="not a set of GTIDs"):
            gtid_set("mariadb", text)


def test_transactions_before_the_last_of_a_mariadb_domain_are_in_the_set() -> None:
    """And the last one itself."""
    mine = MariadbGtids.parse("0-1-7,3-2-9")
    assert [n for n in (6, 7, 8) if mine.contains("0-9", n)] == [6, 7]
    for text, covered in (("0-5-7", True), ("0-1-8", False), ("3-2-9,0-1-1", True), ("", True), ("1-1-1", False)):
        assert mine.covers(MariadbGtids.parse(text)) is covered
    domains = mine.domains()
    domains.clear()
    assert mine.domains() == {0: (1, 7), 3: (2, 9)}, "what was handed out is its owner's"


def test_texts_of_a_mariadb_run_are_in_their_domain_s_place() -> None:
    """Domains before and after it stay; the run's server is the last one of its domain."""
    run = columns(0, 0, number=[8, 9], sources=("2-5", "0-1"))
    for before, expected in (
        ("1-1-1,2-2-7,3-3-3", ["1-1-1,2-5-8,3-3-3", "1-1-1,2-5-9,3-3-3"]),
        ("", ["2-5-8", "2-5-9"]),
        ("3-3-3,10-1-1", ["2-5-8,3-3-3,10-1-1", "2-5-9,3-3-3,10-1-1"]),
        ("0-1-1,1-1-1", ["0-1-1,1-1-1,2-5-8", "0-1-1,1-1-1,2-5-9"]),
    ):
        for wanted in ([0, 1], [0], [1], []):
            mine = MariadbGtids.parse(before)
            assert mine.texts(run, np.array(wanted, np.int64)) == [expected[i] for i in wanted]
            assert mine.text() == expected[1]


# ── positions ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_coordinate_is_the_file_s_number_and_the_byte_in_it() -> None:
    """23 bits and 40 bits: together the transaction's number, and a snapshot's place."""
    assert coordinate(BinlogFile("binlog.000003"), 1234) == BinlogPosition(BinlogFile("binlog.000003"), 1234).coordinate
    assert coordinate(BinlogFile("binlog.000003"), 1234).value == 3 * 2**40 + 1234
    assert coordinate(BinlogFile("b.0"), 0).value == 0
    assert coordinate(BinlogFile("host.7.000012"), FIRST_EVENT).value == 12 * 2**40 + 4
    assert coordinate(BinlogFile("b.8388607"), 2**40 - 1).value == 2**63 - 1
    for file, pos in (("b.8388608", 0), ("b.000001", 2**40), ("b.000001x", 4), ("b000001", 4)):
        with pytest.raises(ConfigurationError) as refused:
            coordinate(BinlogFile(file), pos)
        assert f"binary log {file} at byte {pos}" in str(refused.value)


def test_a_position_is_written_with_what_is_held_and_read_as_that() -> None:
    """A colon may be in a file's name; the set may be empty."""
    held = BinlogPosition(BinlogFile("b.000002"), 99, "0-1-40")
    whole = BinlogPosition(BinlogFile("a:b.000003"), 1234, "0-1-77", held)
    assert whole.text == "a:b.000003:1234;0-1-77;xa=b.000002:99;0-1-40"
    assert BinlogPosition.parse(whole.text) == whole
    assert whole.start == held
    assert held.text == "b.000002:99;0-1-40"
    assert held.start == held
    assert BinlogPosition(BinlogFile("b.1"), 4).text == "b.1:4;"


@pytest.mark.parametrize(
    "text", [":4;", "b.1:;", "b.1:x;", "b.1;", "b.1:4;a;b", "b.1:4;a;ya=b.1:4;c", "b.1:4;a;xa=b.1;c"]
)
def test_half_a_position_is_refused(text: str) -> None:
    """Unknown means stop; and no page of it is repeated."""
    with pytest.raises(InvariantViolated, match="not a position in a binary log"):
        BinlogPosition.parse(text)
    with pytest.raises(InvariantViolated) as refused:
        BinlogPosition.parse("x" * 300)
    assert f"{'x' * 200!r}" in str(refused.value)

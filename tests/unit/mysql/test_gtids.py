"""Sets of GTIDs and positions as texts, and what can be derived from them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.sources.mysql.dump import encode_gtids
from cdcflow.sources.mysql.gtids import Gtids, MariadbGtids, MysqlGtids, gtid_set
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition, coordinate

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4c6b8d21-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (f"{A}:1-5", f"{A}:1-5"),
        (f"{A}:7:1-5:6", f"{A}:1-7"),
        (f"{B}:1,\n{A.upper()}:1-3:5", f"{A}:1-3:5,{B}:1"),
        (f"{A}:1-3:blue:1-2:4:Amber:9,{B}:green:1", f"{A}:1-3:amber:9:blue:1-2:4,{B}:green:1"),
    ],
)
def test_mysql_sets_have_one_text(text: str, canonical: str) -> None:
    """The server writes them with line breaks, and in any order of intervals; a position's text is compared."""
    assert MysqlGtids.parse(text).text() == canonical
    assert MysqlGtids.parse(canonical).text() == canonical


@pytest.mark.parametrize("text", ["x", f"{A}", f"{A}:0-3", f"{A}:5-3", f"{A}:a-b", f"{A}:1-", "0-1-2", f"{A}:-3"])
def test_what_is_no_mysql_set_is_refused(text: str) -> None:
    """A set that is misread would skip transactions."""
    with pytest.raises(ConfigurationError, match="not a set of GTIDs"):
        MysqlGtids.parse(text)


@pytest.mark.parametrize("text", ["0-1", "a-b-c", "0-1-2-3", f"{A}:1"])
def test_what_is_no_mariadb_set_is_refused(text: str) -> None:
    """The flavors' sets must not be mistaken for each other."""
    with pytest.raises(ConfigurationError, match="not a set of GTIDs"):
        MariadbGtids.parse(text)


@given(st.lists(st.tuples(st.sampled_from([A, B, f"{A}:tag"]), st.integers(1, 12)), max_size=40))
def test_mysql_set_is_a_set(added: list[tuple[str, int]]) -> None:
    """Gaps, other servers and tags: what was added is in it, and nothing else."""
    mine, plain = MysqlGtids(), set()
    for source, number in added:
        mine.add(source, number)
        plain.add((source, number))
    for source in (A, B, f"{A}:tag"):
        for number in range(1, 14):
            assert mine.contains(source, number) == ((source, number) in plain)
            assert mine.is_beyond(source, number) == all(n < number for s, n in plain if s == source)
    assert MysqlGtids.parse(mine.text()).text() == mine.text()
    half = MysqlGtids()
    for source, number in added[::2]:
        half.add(source, number)
    assert mine.covers(half)
    assert half.covers(mine) == (set(added[::2]) == plain)


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
@given(seed=st.integers(0, 2**32))
def test_texts_of_many_are_those_of_one_after_another(flavor: str, seed: int) -> None:
    """The quick way for transactions of one server in a row must spell the same as the slow one."""
    chance = random.Random(seed)
    sources = (A, f"{A}:tag", B) if flavor == "mysql" else ("0-1", "0-2", "5-1")
    count = chance.randint(1, 12)
    if chance.random() < 0.5:
        begin = chance.randint(1, 10)
        which, number = np.full(count, chance.randrange(3)), np.arange(begin, begin + count)
    else:
        which = np.array([chance.randint(-1, 2) for _ in range(count)])
        number = np.array([chance.randint(1, 30) for _ in range(count)])
    gtids = Gtids(sources, which.astype(np.int64), number.astype(np.int64))
    wanted = np.array(sorted(chance.sample(range(count), chance.randint(0, count))), np.int64)
    before = f"{A}:1-4:9:tag:2,{B}:5" if flavor == "mysql" else "0-1-3,2-2-2,5-1-1"
    quick, slow = (gtid_set("mysql" if flavor == "mysql" else "mariadb", before) for _ in range(2))
    expected = []
    for at in range(count):
        found = gtids.gtid_at(at)
        if found is not None:
            slow.add(*found)
        expected += [slow.text()] if at in wanted else []
    assert quick.texts(gtids, wanted) == expected
    assert quick.text() == slow.text()


def test_mariadb_set_has_the_last_of_each_domain() -> None:
    """A domain has one order, whichever server wrote into it."""
    mine = MariadbGtids.parse("0-1-7,3-2-9")
    mine.add("0-2", 8)
    assert mine.text() == "0-2-8,3-2-9"
    assert mine.contains("0-1", 5)
    assert not mine.contains("0-1", 9)
    assert not mine.contains("1-1", 1)
    assert mine.covers(MariadbGtids.parse("0-1-8"))
    assert not mine.covers(MariadbGtids.parse("0-1-8,1-1-1"))
    assert mine.domains() == {0: (2, 8), 3: (2, 9)}


def test_set_in_a_command_has_exclusive_ends_and_tags_only_where_there_are_any() -> None:
    """M22: as MySQL's documentation of COM_BINLOG_DUMP_GTID defines it; servers before 8.3 do not support tags."""
    plain = encode_gtids(MysqlGtids.parse(f"{A}:1-5:7"))
    assert plain.hex() == "01" + "00" * 7 + A.replace("-", "") + "02" + "00" * 7 + "".join(
        n.to_bytes(8, "little").hex() for n in (1, 6, 7, 8)
    )
    tagged = encode_gtids(MysqlGtids.parse(f"{A}:1:ab:2"))
    assert tagged[:8] == bytes([1, 2, 0, 0, 0, 0, 0, 1])
    assert tagged[24:25] == b"\0"
    assert b"\4ab" in tagged


@pytest.mark.parametrize(
    "text",
    [
        "binlog.000003:1234;",
        f"binlog.000003:99;{A}:1-7",
        "a:b.000001:4;0-1-2;xa=x.000001:5;0-1-1",
        "b.000001:4;;began=1764241200",
        "b.000001:4;0-1-2;xa=x.000001:5;0-1-1;began=1764241200",
    ],
)
def test_positions_are_read_back_unchanged(text: str) -> None:
    """Checkpoints contain them for years."""
    assert BinlogPosition.parse(text).text == text


@pytest.mark.parametrize(
    "text",
    ["", "binlog.000003", "binlog.000003:4", "x:1;;;", "x:1;a;b;c", "x:1;a;began=b", "x:1;began=7;", "16/B374D848"],
)
def test_what_is_no_position_is_refused(text: str) -> None:
    """The checkpoint of another program, for instance."""
    with pytest.raises(InvariantViolated, match="not a position"):
        BinlogPosition.parse(text)


def test_reading_begins_before_the_oldest_prepared_transaction() -> None:
    """M45: transactions already delivered after it are skipped, not read into the log again."""
    position = BinlogPosition.parse("x.000009:500;0-1-9;xa=x.000004:70;0-1-3")
    assert position.start == BinlogPosition(BinlogFile("x.000004"), 70, "0-1-3")
    assert BinlogPosition(BinlogFile("x.000001"), 4).start == BinlogPosition(BinlogFile("x.000001"), 4)


def test_coordinates_grow_over_files_and_beyond_4_gib() -> None:
    """M26: they are the transactions' numbers, and decide what a snapshot may not know."""
    places = [("b.000001", 4), ("b.000001", 1 << 33), ("b.000002", 4), ("b.1000000", 5)]
    coordinates = [coordinate(BinlogFile(file), pos) for file, pos in places]
    assert coordinates == sorted(set(coordinates))
    for file, pos in (("binlog", 4), ("b.8388608", 4), ("b.000001", 1 << 40)):
        with pytest.raises(ConfigurationError, match="cdcflow can parse"):
            coordinate(BinlogFile(file), pos)

"""What a run over the suite of MySQL or MariaDB would report, on tables created for this test."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pymysql
import pytest
from tests.ddlfuzz.execute import Failure
from tests.servers.mysql import MySQLServer
from tests.suites.follower import Follower
from tests.suites.onmysql import OnSuite
from tests.support.polling import wait_until

from cdcflow.demo.servers.mysql import Flavor
from cdcflow.model.table import TableId

pytestmark = [pytest.mark.long, pytest.mark.mysql, pytest.mark.timeout(300)]


@pytest.fixture(params=["mysql", "mariadb"])
def follower(request: pytest.FixtureRequest) -> Iterator[Follower]:
    flavor: Flavor = request.param
    with MySQLServer(flavor) as server:
        server.execute("CREATE DATABASE test", "CREATE TABLE test.captured_from_the_start (id int PRIMARY KEY)")
        on = OnSuite(server)
        following = Follower(flavor, on, "running", random.Random(1))
        following.start()
        try:
            yield following
        finally:
            following.close()
            on.close()


def test_invalid_text_differs_from_a_question_mark(follower: Follower) -> None:
    """With `replace` the log has U+FFFD where the server's conversion has `?`: the comparison must not confuse them."""
    follower.on.execute(
        "CREATE TABLE test.odd (id int PRIMARY KEY, s varchar(9) CHARACTER SET sjis, c varchar(9) CHARACTER SET ucs2,"
        " g varchar(9) CHARACTER SET greek, e enum('?','a') CHARACTER SET sjis)"
    )
    texts = [("3F81AD3F41", "003FD800003F", "3FFFA43F"), ("81AD", "D800", "A4"), ("01813F", "0001", "01"), ("", "", "")]
    for number, (sjis, ucs2, greek) in enumerate(texts):
        follower.on.execute(f"INSERT IGNORE INTO test.odd VALUES ({number}, X'{sjis}', X'{ucs2}', X'{greek}', '?')")
    # Half a surrogate pair as UTF-8: MariaDB stores it, MySQL cuts it off.
    follower.on.execute("ALTER TABLE test.odd ADD m varchar(9) CHARACTER SET utf8mb4")
    half = "CONVERT(CAST(UNHEX('0000003F0000D800') AS CHAR CHARACTER SET utf32) USING utf8mb4)"
    follower.on.execute(f"UPDATE IGNORE test.odd SET m = {half} WHERE id = 0")
    stored = b"3FEDA080" if follower.case.server == "mariadb" else b"3F"
    assert follower.on.ask("SELECT HEX(m) FROM test.odd WHERE id = 0") == [(stored,)]
    follower.compare()
    assert sum("no text" in stop or "bad_text" in stop for stop in follower.outcome.stops) >= 2

    follower.on.execute("UPDATE test.odd SET s = '?' WHERE id = 1")
    follower.compare()
    follower.logged._changes[TableId("test", "odd")].pop()

    with pytest.raises(Failure, match="1 rows in the log only, 1 in the source only"):
        follower.compare()


def test_a_table_recreated_without_transactions_before_it_is_read_is_read_in_the_end(follower: Follower) -> None:
    """Its remedy is followed to the letter: a backfill that has already failed stays failed."""
    names = [f"late_{number}" for number in range(3)]
    follower._stop()
    follower.on.execute("CREATE TABLE test.many (id int PRIMARY KEY)")
    follower.on.execute(f"INSERT INTO test.many VALUES {','.join(f'({id_})' for id_ in range(2000))}")
    for name in names:
        follower.on.execute(f"CREATE TABLE test.{name} (id int PRIMARY KEY)")
    follower.settings["look"] = "6"
    follower._start()

    def has_the_last() -> bool:
        status = follower.daemon.status() if follower.daemon else None
        return status is not None and f"test.{names[-1]}" in status.tables

    wait_until(has_the_last, "the list of tables", pause_max_s=0.02)
    for name in names:
        follower.on.execute(f"DROP TABLE test.{name}")
        follower.on.execute(f"CREATE TABLE test.{name} (id int PRIMARY KEY) ENGINE = MEMORY")
        follower.on.execute(f"INSERT INTO test.{name} VALUES (1), (5)")
    follower._wait_for_a_list_read()  # their backfills were tried before it
    follower.compare()
    assert follower.outcome.stops

    follower.compare()
    assert {TableId("test", name) for name in names} <= follower.equal


def test_lock_that_a_test_holds_is_no_failure_until_the_test_is_over(follower: Follower) -> None:
    """The comparison in the middle of a test waits for the lock in vain; the one at its end does not."""
    follower.on.execute("CREATE TABLE test.locked (id int PRIMARY KEY)")
    follower.on.execute("INSERT INTO test.locked VALUES (1)")
    follower.compare()
    assert isinstance(follower.on, OnSuite)
    with closing(follower.on.server.connect(None, ssl_disabled=True)) as holder:
        with holder.cursor() as cursor:
            cursor.execute("LOCK TABLES test.locked WRITE")
        follower.compare_if_possible()
        with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
            follower.on.ask("SELECT * FROM test.locked")
    follower.compare()


def test_rows_that_a_cascade_changed_are_equal_after_the_backfill_that_the_page_names(follower: Follower) -> None:
    follower.on.execute("CREATE TABLE test.parent (id int PRIMARY KEY)")
    follower.on.execute(
        "CREATE TABLE test.child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES test.parent (id)"
        " ON DELETE CASCADE ON UPDATE CASCADE)"
    )
    follower.on.execute("INSERT INTO test.parent VALUES (1), (2)")
    follower.on.execute("INSERT INTO test.child VALUES (1, 1), (2, 2)")
    follower.compare()
    assert follower.read_after_cascades == 0

    follower.on.execute("DELETE FROM test.parent WHERE id = 1")
    if follower.case.server == "mariadb":
        follower.is_cascade_excused = False
        with pytest.raises(Failure, match="1 rows in the log only"):
            follower.compare()
        follower.is_cascade_excused = True
    follower.compare()

    assert follower.read_after_cascades == (1 if follower.case.server == "mariadb" else 0)

"""A daemon that captures some rows of its tables, next to a busy writer: after kills the log has exactly the rows that
the server finds by the same condition, and comparisons and repairs apply it, too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import PostgresServer
from tests.support.daemon.reader_processes import WITHIN_S, assert_equal_after_all, reading, rows_in_files
from tests.support.rows.filtered_bank import FilteredBank, FilteredMySQLBank

from cdcflow import wiring
from cdcflow.config import load

_numbers = itertools.count(1)


@pytest.fixture
def filtered_bank(private_server: PostgresServer, tmp_path: Path) -> Iterator[FilteredBank]:
    database = private_server.create_database(f"filtered_{next(_numbers)}")
    made = FilteredBank(database, tmp_path)
    database.execute("ALTER TABLE entries REPLICA IDENTITY FULL")
    yield made
    made.stop_writing()
    database.drop()


@pytest.fixture
def filtered_mysql_bank(mysql_database: MySQLDatabase, tmp_path: Path) -> Iterator[FilteredMySQLBank]:
    made = FilteredMySQLBank(mysql_database, tmp_path)
    yield made
    made.stop_writing()


@pytest.mark.postgres
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), [("after:append", "6"), ("after:chunk read", "4"), ("before:seal", "1")])
def test_log_has_the_rows_of_the_filter_after_a_kill(filtered_bank: FilteredBank, point: str, count: str) -> None:
    """Wide columns that updates omit, old rows or none, keys that change, and transactions in spools with parts that
    are rolled back."""
    killed_and_compared(filtered_bank, point, count)


@pytest.mark.postgres
@pytest.mark.long
def test_rows_that_other_processes_read_and_write_fit(filtered_bank: FilteredBank) -> None:
    """Those processes keep the rows until they have offsets, and must not keep others."""
    filtered_bank.configure(backfill={"chunk_rows_max": 4000})
    more = "SELECT i, i, i % 7, repeat(md5(i::text), 40) FROM generate_series(20000, 80000) i"
    filtered_bank.database.execute(f"INSERT INTO entries (id, account, amount, note) {more}")
    with reading(filtered_bank, 2) as (processes, start):
        start(0)
        start(1)
        processes.wait(WITHIN_S)
        wiring.capture(load(filtered_bank.config_path), backfill=(), once=True, readers=processes).run()
        assert processes.answered > 4
    assert rows_in_files(filtered_bank) > 10_000
    assert_equal_after_all(filtered_bank)


@pytest.mark.mysql
@pytest.mark.long
@pytest.mark.parametrize(("point", "count"), [("after:append", "6"), ("after:release", "4")])
def test_log_of_mysql_has_the_rows_of_the_filter_after_a_kill(
    filtered_mysql_bank: FilteredMySQLBank, point: str, count: str
) -> None:
    """Rows whose columns were omitted are read again by key."""
    killed_and_compared(filtered_mysql_bank, point, count)


def killed_and_compared(bank: FilteredBank | FilteredMySQLBank, point: str, count: str) -> None:
    bank.start_writing(seed=sum(point.encode()))
    killed = bank.daemon(point, count)
    bank.assert_killed(killed, live=True)
    again = bank.daemon()
    before = bank.transactions
    bank.wait_until(lambda: bank.transactions > before + 25, "the writer to continue", again)
    bank.stop_writing()
    bank.assert_verified(again)
    bank.catch_up_and_stop(again)
    bank.assert_log_equals_source()

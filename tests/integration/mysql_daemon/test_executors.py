"""Separate processes read a backfill's chunks from MySQL and MariaDB while a writer writes, and die at every step."""

from __future__ import annotations

import pytest
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.daemon.reader_processes import (
    assert_equal_after_all,
    read_while_one_dies,
    rows_in_files,
    run_backfill,
)

pytestmark = pytest.mark.mysql

POINTS = [
    pytest.param("before:read", marks=pytest.mark.long),
    pytest.param("after:read", marks=pytest.mark.long),
    "before:write",
    pytest.param("after:write", marks=pytest.mark.long),
    pytest.param("within:file", marks=pytest.mark.long),
]


def filled(bank: MySQLBank) -> None:
    """Enough rows for chunks of several parts, however much is written."""
    bank.configure(backfill={"chunk_time_busy_ms": 1000, "chunk_rows_max": 40_000})
    digits = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))
    joined = ", ".join(f"({digits}) t{n}" for n in range(5))
    number = "t0.d + 10 * t1.d + 100 * t2.d + 1000 * t3.d + 10000 * t4.d + 20001"
    bank.database.execute(
        f"INSERT INTO accounts SELECT n, 'owner', n, NULL, now(6) FROM (SELECT {number} AS n FROM {joined}) numbers"
    )


@pytest.mark.spread(1)
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_at_a_step_loses_and_doubles_nothing(bank: MySQLBank, point: str) -> None:
    """W03, W26, L15: what its snapshots see is determined where the stream is, by GTIDs or by a position in the log."""
    filled(bank)
    bank.start_writing(seed=len(point))
    read_while_one_dies(bank, point, away=point == "within:file")
    assert rows_in_files(bank) >= 20_000, "the rows did not go by reference"
    assert_equal_after_all(bank)


@pytest.mark.long
def test_local_executors_of_spark_read_a_backfill(bank: MySQLBank) -> None:
    """`cdcflow backfill --on local[2]` as a user runs it, while a writer writes."""
    filled(bank)
    bank.start_writing(seed=5)
    run_backfill(bank, "local[2]")
    assert rows_in_files(bank) >= 20_000, "the rows did not go by reference"
    assert_equal_after_all(bank)

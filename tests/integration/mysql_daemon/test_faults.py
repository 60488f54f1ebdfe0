"""What can go wrong around a daemon on MySQL or MariaDB: restarts of the server, a full disk, a shape that changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.mysql import MySQLServer
from tests.support.daemon.faults import check_full_disk
from tests.support.daemon.mysql_bank import MySQLBank

pytestmark = [pytest.mark.mysql, pytest.mark.spread(1)]

MORE = "INSERT INTO entries (account, amount, note) SELECT id, 1, 'more' FROM accounts WHERE id <= 3000"


def test_server_restart_in_mid_stream_loses_nothing(own_mysql: MySQLServer, tmp_path: Path) -> None:
    """O07, M13: after a clean stop and after a kill, the server restarts with another file, and table ids start
    over.
    """
    bank = MySQLBank(own_mysql.create_database("restarted"), tmp_path)
    daemon = bank.daemon()
    bank.wait_until(lambda: bank.has_reached(""), "the first backfill", daemon)
    for end in (own_mysql.stop, own_mysql.kill):
        bank.database.execute(MORE)
        end()
        own_mysql.start()
        bank.database.execute("UPDATE accounts SET balance = balance + 1 WHERE id % 7 = 0")
    bank.catch_up_and_stop(daemon)
    bank.assert_log_equals_source()


def test_full_disk_stops_clean_and_capture_resumes_when_there_is_room(
    bank: MySQLBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L08: what does not fit is not counted; when there is room again it arrives, once."""
    check_full_disk(bank, bank.database.execute, MORE, monkeypatch)


def test_column_that_is_added_in_the_middle_of_a_backfill(bank: MySQLBank) -> None:
    """W15, M34: chunks before and after it have other shapes, and so have the rows of the log; all fold to one."""
    bank.configure(backfill={"chunk_time_target_ms": 5, "rows_per_second_max": 6000})
    seen: list[str] = []
    with bank.capturing(on_event=lambda event, _fields: seen.append(event)):
        bank.wait_until(lambda: seen.count("range chunk read") > 2, "the first chunks")
        bank.database.execute("UPDATE entries SET note = 'before' WHERE id % 4 = 0")
        bank.database.execute("ALTER TABLE entries ADD COLUMN extra int NULL AFTER account")
        bank.database.execute("UPDATE entries SET extra = id % 10 WHERE id % 3 = 0")
        bank.database.execute("INSERT INTO entries VALUES (100000, 1, 2, 3, 'new'), (100001, 1, NULL, 3, NULL)")
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the backfill to end")
    bank.assert_log_equals_source()


def test_values_that_a_statement_writes_into_old_rows_are_read(bank: MySQLBank) -> None:
    """P18, M34, M37: the log contains none of them: a default, a renamed column, a tool's copy."""
    seen: list[str] = []
    with bank.capturing(on_event=lambda event, _fields: seen.append(event)):
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
        bank.database.execute(
            "ALTER TABLE entries ADD COLUMN kind int NOT NULL DEFAULT 7 AFTER account",
            "ALTER TABLE accounts CHANGE owner holder varchar(100) NOT NULL, ADD COLUMN code int DEFAULT NULL",
            "CREATE TABLE _holders_gho LIKE holders",
            "ALTER TABLE _holders_gho ADD COLUMN extra int DEFAULT 5",
            "INSERT INTO _holders_gho (name, region, seen, words) SELECT * FROM holders",
            "RENAME TABLE holders TO _holders_del, _holders_gho TO holders",
            "DROP TABLE _holders_del",
            "UPDATE entries SET note = 'after' WHERE id = 1",
        )
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the tables to be read again")
    assert seen.count("table to be read again") == 3
    bank.assert_log_equals_source()

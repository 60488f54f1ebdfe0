"""Values that policies protect are in no file: neither after kills nor while anything runs, not even in spools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from tests.support.daemon.reader_processes import WITHIN_S, assert_equal_after_all, reading, rows_in_files
from tests.support.polling import wait_until
from tests.support.privacy.canaries import CANARY, canaries_in
from tests.support.privacy.private_bank import HASH, PrivateBank
from tests.support.privacy.private_mysql_bank import PrivateMySQLBank

from cdcflow import wiring
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.config import load
from cdcflow.model.table import TableId
from cdcflow.sources.privacy.stream import PrivateSpool
from cdcflow.testing.folded import fold_log

POINTS = [
    ("after:decode", "9"),
    ("after:append", "6"),
    ("before:fsync", "40"),
    ("after:chunk read", "4"),
    ("before:release", "3"),
    ("before:seal", "1"),
    ("after:rename", "2"),
]


@pytest.mark.postgres
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), POINTS)
def test_killed_daemon_leaves_no_protected_value_in_any_file(bank: PrivateBank, point: str, count: str) -> None:
    """Files of a dead process stay on the disk: unfinished journals, spools of transactions that were never
    committed, rows of abandoned chunks."""
    killed_and_searched(bank, point, count)


@pytest.mark.mysql
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), [("after:append", "6"), ("after:chunk read", "4"), ("after:release", "4")])
def test_killed_daemon_on_mysql_leaves_no_protected_value_in_any_file(
    mysql_bank: PrivateMySQLBank, point: str, count: str
) -> None:
    """The bounds of chunks are keys, which the log keeps with the progress; rows that came incompletely are read again
    by their keys."""
    killed_and_searched(mysql_bank, point, count)


def killed_and_searched(bank: PrivateBank | PrivateMySQLBank, point: str, count: str) -> None:
    bank.start_writing(seed=sum(point.encode()))
    killed = bank.daemon(point, count)
    bank.assert_killed(killed, live=True)
    assert canaries_in(bank.folder) == []
    again = bank.daemon()
    before = bank.transactions
    bank.wait_until(lambda: bank.transactions > before + 60, "the writer to continue", again)
    bank.stop_writing()
    bank.assert_verified(again)
    bank.catch_up_and_stop(again)
    bank.assert_log_equals_source()
    assert canaries_in(bank.folder) == []


@pytest.mark.postgres
def test_search_finds_values_that_a_spool_let_through(bank: PrivateBank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing proves nothing unless it finds something where there is something."""

    def write_unprotected(self: PrivateSpool, batches: object, subxids: object) -> None:
        self._spool.write(batches, subxids)  # type: ignore[arg-type]  # the hole that is planted

    monkeypatch.setattr(PrivateSpool, "write", write_unprotected)
    with bank.database.connect(autocommit=False) as conn, bank.capturing():
        bank.wait_until(lambda: bank.reader.exists() and bank.has_reached(""), "the backfill")
        assert canaries_in(bank.folder) == []
        conn.execute("UPDATE visits SET path = path || repeat('x', 200)")
        found = wait_until(lambda: canaries_in(bank.folder), "a protected value in a file")
        conn.rollback()
    assert all(place.startswith("log/spool/") for place in found)


@pytest.mark.postgres
def test_rows_that_other_processes_read_and_write_have_the_policies(bank: PrivateBank) -> None:
    """Those processes have neither this machine's environment nor its files, and write rows into files by themselves;
    the connection to them is no file."""
    bank.configure(backfill={"chunk_rows_max": 4000})
    more = f"SELECT i, '{CANARY}' || i, repeat('{CANARY}', 150), true FROM generate_series(10000, 40000) i"
    bank.database.execute(f"INSERT INTO visits {more}")
    with reading(bank, 2) as (processes, start):
        start(0)
        start(1)
        processes.wait(WITHIN_S)
        wiring.capture(load(bank.config_path), backfill=(), once=True, readers=processes).run()
        assert processes.answered > 4
    assert rows_in_files(bank) > 10_000
    assert canaries_in(bank.folder) == []
    assert_equal_after_all(bank)
    assert canaries_in(bank.folder) == []


@pytest.mark.postgres
def test_rows_that_other_processes_read_are_not_those_of_exchanged_columns(bank: PrivateBank) -> None:
    """They know columns by their names only: the table is not read by them, and the reason has the remedy."""
    visits = TableId("public", "visits")
    bank.configure(backfill={"chunk_rows_max": 4000})
    more = f"SELECT i, '{CANARY}' || i, repeat('{CANARY}', 150), true FROM generate_series(10000, 40000) i"
    bank.database.execute(f"INSERT INTO visits {more}")
    bank.database.execute("ALTER TABLE visits ADD note text")
    with bank.capturing():
        bank.wait_until(lambda: bank.reader.exists() and bank.has_reached(""), "the backfill")
    for names in ("path TO x", "note TO path", "x TO note"):
        bank.database.execute(f"ALTER TABLE visits RENAME {names}")
    with reading(bank, 2) as (processes, start):
        start(0)
        start(1)
        processes.wait(WITHIN_S)
        wiring.capture(load(bank.config_path), backfill=(str(visits),), once=True, readers=processes).run()
        assert processes.answered
    known = Progress.from_json(bank.reader.newest_checkpoint().progress).tables[visits]
    assert known.state == "failed"
    assert "run the same command without --on" in str(known.reason)
    assert canaries_in(bank.folder) == []
    fence = bank.fence()
    with bank.capturing(backfill=[str(visits)]):
        bank.wait_until(lambda: bank.has_reached(fence), "the table to be read")
    assert {row.values["note"] for row in fold_log(bank.reader)[visits].values()} == {"****"}
    assert canaries_in(bank.folder) == []


@pytest.mark.postgres
def test_policy_follows_a_renamed_column_and_a_dropped_one_stops_nothing(bank: PrivateBank) -> None:
    """While the capture runs, and at starts afterwards."""
    with bank.capturing():
        bank.wait_until(lambda: bank.reader.exists() and bank.has_reached(""), "the backfill")
        bank.database.execute(f"UPDATE visits SET path = '{CANARY} before' WHERE id = 1")
        bank.database.execute("ALTER TABLE visits RENAME path TO route")
        bank.database.execute(f"INSERT INTO visits VALUES (9999, '{CANARY}', '{CANARY} after', true)")
        bank.database.execute("ALTER TABLE visits DROP email")
        bank.database.execute(f"UPDATE visits SET route = '{CANARY} dropped' WHERE id = 2")
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the changes")
    bank.database.execute(f"UPDATE visits SET route = '{CANARY} stopped' WHERE id = 3")
    bank.database.execute("ALTER TABLE visits RENAME route TO way")
    for number in (9001, 9002):
        with bank.capturing():
            bank.database.execute(f"INSERT INTO visits VALUES ({number}, '{CANARY} again', true)")
            bank.wait_until(partial(bank.has_reached, bank.fence()), "the log to continue")
    found = fold_log(bank.reader)[TableId("public", "visits")].values()
    assert {row.values.get("way", row.values.get("route", row.values.get("path"))) for row in found} == {"****"}
    assert len(found) == 1503
    assert canaries_in(bank.folder) == []


@pytest.mark.mysql
def test_table_of_mysql_with_a_renamed_column_fails_until_the_new_name_has_a_policy(
    mysql_bank: PrivateMySQLBank,
) -> None:
    """Its values would leave under the new name; the remedy works, also for rows from before the rename."""
    bank = mysql_bank
    with bank.capturing():
        bank.wait_until(lambda: bank.reader.exists() and bank.has_reached(""), "the backfill")
    bank.database.execute(f"UPDATE visits SET path = '{CANARY} before' WHERE id = 1")
    bank.database.execute("ALTER TABLE visits RENAME COLUMN path TO route")
    bank.database.execute(f"INSERT INTO visits VALUES (9999, '{CANARY}', '{CANARY} after', 1)")
    visits, fence = TableId(bank.schema, "visits"), bank.fence()

    def known() -> TableProgress:
        return Progress.from_json(bank.reader.newest_checkpoint().progress).tables[visits]

    with bank.capturing():
        bank.wait_until(lambda: known().lacks_changes and bank.has_passed(fence), "the table to fail")
    assert "no column path, which has a policy" in str(known().reason)
    assert "list both under `optional`" in str(known().reason)
    assert canaries_in(bank.folder) == []
    columns = {"email": HASH, "path": "mask", "route": "mask"}
    bank.other_settings["tables"] = {
        **bank.other_settings["tables"],
        f"{bank.schema}.visits": {"columns": columns, "optional": ["path", "route"]},
    }
    bank.configure()
    fence = bank.fence()
    with bank.capturing(backfill=[str(visits)]):
        bank.wait_until(lambda: bank.has_reached(fence), "the table to be read again")
    masked = fold_log(bank.reader)[visits]
    assert {row.values.get("route", row.values.get("path")) for row in masked.values()} == {"****"}
    assert canaries_in(bank.folder) == []


def renamed_table_fails_alone(bank: PrivateBank | PrivateMySQLBank, table: str, statements: Sequence[str]) -> None:
    """`statements` rename it to `guests`, and change rows of it."""
    guests, others = TableId(bank.schema, "guests"), [name for name in bank.tables if name != table]
    with bank.capturing():
        bank.wait_until(lambda: bank.reader.exists() and bank.has_reached(""), "the backfill")
        for statement in statements:
            bank.database.execute(statement)
    for times in (1, 2):
        bank.database.execute(f"UPDATE guests SET email = concat(email, '{CANARY}') WHERE email LIKE '%-1{times}@%'")
        bank.database.execute(f"UPDATE people SET score = {times}")
        with bank.capturing():
            bank.wait_until(partial(bank.has_passed, bank.fence()), "the other tables to continue")
    known = Progress.from_json(bank.reader.newest_checkpoint().progress).tables
    assert known[guests].state == "failed"
    assert f"it has no policies, and may be {bank.schema}.{table}" in str(known[guests].reason)
    assert {known[TableId(bank.schema, name)].state for name in others} == {"done"}
    tables = fold_log(bank.reader)
    assert [name for name in others if bank.logged_rows(name, tables) != bank.source_rows(name)] == []
    assert canaries_in(bank.folder) == []
    given = bank.other_settings["tables"]
    rules = next(given[name] for name in (f"{bank.schema}.{table}", f"{bank.schema}.c*") if name in given)
    bank.other_settings["tables"] = {**given, str(guests): rules}
    bank.configure()
    bank.tables = (*others, "guests")
    fence = bank.fence()
    with bank.capturing(backfill=[str(guests)]):
        bank.wait_until(lambda: bank.has_reached(fence), "the table to be read")
    assert guests in fold_log(bank.reader)
    assert canaries_in(bank.folder) == []


@pytest.mark.spread(1)
@pytest.mark.postgres
@pytest.mark.parametrize("table", ["visits", "cards"])
def test_renamed_table_fails_alone_until_its_new_name_has_policies(bank: PrivateBank, table: str) -> None:
    """Its rows would leave without policies, whether its name or a pattern gave it some."""
    renamed, changed = f"ALTER TABLE {table} RENAME TO guests", "UPDATE guests SET email = email || '!'"
    renamed_table_fails_alone(bank, table, [renamed, changed])


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_renamed_table_of_mysql_fails_alone_until_its_new_name_has_policies(mysql_bank: PrivateMySQLBank) -> None:
    renamed, changed = "RENAME TABLE visits TO guests", "UPDATE guests SET email = concat(email, '!')"
    renamed_table_fails_alone(mysql_bank, "visits", [renamed, changed])


def skipped_and_others_captured(bank: PrivateBank | PrivateMySQLBank, create: str, insert: str, more: str) -> None:
    pattern = f"{bank.schema}.o*"
    with bank.capturing():
        bank.wait_until(lambda: bank.reader.exists() and bank.has_reached(""), "the backfill")
    bank.other_settings["tables"] = {**bank.other_settings["tables"], pattern: {"columns": {"tag": "mask"}}}
    bank.configure()
    with bank.capturing():
        for statement in (create, insert, more):
            bank.database.execute(statement)
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the new table")
    fence = bank.fence()
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(fence), "the log to continue after a restart")
    assert TableId(bank.schema, "odd") not in fold_log(bank.reader)
    bank.assert_log_equals_source()
    assert canaries_in(bank.folder) == []


@pytest.mark.postgres
def test_new_table_that_its_policies_do_not_fit_is_skipped_and_stops_no_other(bank: PrivateBank) -> None:
    """A pattern's policy for a column that is part of this table's key: doctor and status name it."""
    create, insert = "CREATE TABLE odd (tag text PRIMARY KEY)", f"INSERT INTO odd VALUES ('{CANARY}')"
    skipped_and_others_captured(bank, create, insert, "UPDATE visits SET seen = false WHERE id = 1")


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_new_table_on_mysql_that_its_policies_do_not_fit_stops_no_other(mysql_bank: PrivateMySQLBank) -> None:
    create, insert = "CREATE TABLE odd (tag varchar(40) PRIMARY KEY)", f"INSERT INTO odd VALUES ('{CANARY}')"
    skipped_and_others_captured(mysql_bank, create, insert, "UPDATE visits SET seen = 0 WHERE id = 1")

"""What can go wrong around a running daemon: server restarts, a lost slot, a full disk, a second daemon."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank
from tests.support.daemon.faults import check_full_disk
from tests.support.polling import PATIENCE_S

from cdcflow import wiring
from cdcflow.capture import log_writes
from cdcflow.capture.attempt import LoopIntervals
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.read import reader
from cdcflow.log.read.check import check
from cdcflow.sinks.files.log import FileLog
from cdcflow.sources.postgres import chunks

pytestmark = pytest.mark.postgres


def test_server_restart_in_mid_stream_loses_nothing(own_postgres: PostgresServer, tmp_path: Path) -> None:
    """O07, P40: the slot may go back after a crash of the server; replayed transactions are skipped by position."""
    bank = Bank(own_postgres.create_database("restarted"), tmp_path)
    daemon = bank.daemon()
    bank.wait_until(lambda: bank.has_reached(""), "the first backfill", daemon)
    for immediate in (False, True):
        bank.database.execute("INSERT INTO entries (account, amount) SELECT i, i FROM generate_series(1, 5000) i")
        own_postgres.restart(immediate=immediate)
        bank.database.execute("UPDATE accounts SET balance = balance + 1 WHERE id % 7 = 0")
    bank.catch_up_and_stop(daemon)
    bank.assert_log_equals_source()


def test_slot_dropped_by_another_session_is_history_lost(bank: Bank) -> None:
    """P37: never a new slot silently. An operator's command creates one, and every table is read again."""
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
    bank.database.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
    bank.database.execute("DELETE FROM accounts WHERE id <= 500")
    bank.database.execute("UPDATE accounts SET owner = 'unseen' WHERE id = 600")
    with pytest.raises(HistoryLost, match="accept-history-loss"):
        bank.capture_to_its_end()
    with bank.capturing(accept_history_loss=True):
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the new backfill")
    bank.assert_log_equals_source()


def test_new_table_is_captured_from_its_first_row(bank: Bank) -> None:
    """O05, P61: a new table enters the publication after a fence and is read; the others are not affected."""
    daemon = bank.daemon()
    bank.wait_until(lambda: bank.has_reached(""), "the first backfill", daemon)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(timeout=PATIENCE_S) == 0, bank.output()
    bank.database.execute("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1), (2)")
    daemon = bank.daemon()
    bank.wait_until(lambda: len(bank.logged_rows("later")) == 2, "the new table", daemon)
    bank.database.execute("INSERT INTO later VALUES (3)")
    bank.catch_up_and_stop(daemon)
    assert bank.logged_rows("later") == [(1,), (2,), (3,)]
    bank.assert_log_equals_source()


def test_table_made_while_it_runs_is_captured_soon(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """O05, P61: a daemon need not be restarted because a migration created a table."""
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=1.0))
    seen: list[str] = []
    with bank.capturing(on_event=lambda event, _fields: seen.append(event)):
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
        bank.database.execute("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1), (2)")
        bank.wait_until(lambda: len(bank.logged_rows("later")) == 2, "the new table")
        bank.database.execute("DELETE FROM later WHERE id = 1")
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence")
    assert "captured tables changed" in seen
    assert bank.logged_rows("later") == [(2,)]
    bank.assert_log_equals_source()


def test_tables_that_change_places_are_captured_on(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every online migration ends like this: the new table takes the old one's name in one transaction, under load."""
    monkeypatch.setattr(wiring.captures, "LoopIntervals", partial(LoopIntervals, tables_look_s=1.0))
    bank.database.execute("CREATE TABLE entries_new (LIKE entries INCLUDING ALL)")
    seen: list[str] = []
    bank.start_writing(seed=8)
    with bank.capturing(on_event=lambda event, _fields: seen.append(event)):
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
        bank.database.execute("INSERT INTO entries_new SELECT * FROM entries WHERE id % 3 > 0")
        bank.database.execute(
            "BEGIN; ALTER TABLE entries RENAME TO entries_old; ALTER TABLE entries_new RENAME TO entries; COMMIT"
        )
        bank.database.execute(
            "UPDATE entries SET note = 'moved' WHERE id % 50 = 1; DELETE FROM entries_old WHERE id < 9"
        )
        bank.wait_until(lambda: "captured tables changed" in seen, "the check of the tables")
        bank.stop_writing()
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to pass the fence")
    bank.tables = (*bank.tables, "entries_old")
    bank.assert_log_equals_source()


def test_table_removed_from_the_publication_is_history_lost(bank: Bank) -> None:
    """P61: unpublished changes are not in the stream, and would never be noticed; so the capture stops, with an error
    that names the table.
    """
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
    (name,) = bank.database.execute("SELECT pubname FROM pg_publication")[0]
    bank.database.execute(f"ALTER PUBLICATION {name} DROP TABLE entries")
    bank.database.execute("INSERT INTO entries (account, amount) SELECT 1, i FROM generate_series(1, 100) i")
    with pytest.raises(HistoryLost, match=r"public\.entries was taken out"):
        bank.capture_to_its_end()
    with bank.capturing(accept_history_loss=True):
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the new backfill")
    bank.assert_log_equals_source()


def test_publication_set_to_less_and_back_under_a_running_capture_is_history_lost(bank: Bank) -> None:
    """P11, P61: unless a check falls in between, a check finds it unchanged; the printed remedy ends with
    the source's rows.
    """

    def set_to_less_and_back() -> None:
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
        (name,) = bank.database.execute("SELECT pubname FROM pg_publication")[0]
        bank.database.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert')")
        bank.database.execute("DELETE FROM accounts WHERE id <= 500")
        bank.database.execute("UPDATE accounts SET owner = 'unseen' WHERE id = 600")
        bank.database.execute(f"ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')")

    somebody = threading.Thread(target=set_to_less_and_back)
    somebody.start()
    with pytest.raises(HistoryLost, match=r"was (altered|changed)(.|\n)*cdcflow run --accept-history-loss"):
        bank.capture_to_its_end()
    somebody.join()
    with bank.capturing(accept_history_loss=True):
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the new backfill")
    bank.assert_log_equals_source()


def test_second_daemon_on_the_same_log_is_refused(bank: Bank) -> None:
    """L10, P75: one writer; the second gets an error that names the log's holder."""
    daemon = bank.daemon()
    bank.wait_until(lambda: bank.has_reached(""), "the first backfill", daemon)
    with pytest.raises(ConfigurationError, match=str(daemon.pid)):
        bank.capture_to_its_end()
    bank.catch_up_and_stop(daemon)
    bank.assert_log_equals_source()


def test_two_logs_of_one_database_ignore_each_others_marks(bank: Bank, tmp_path: Path) -> None:
    """Both count epochs and windows from 1: a mark of the other one would open and close the wrong window."""
    (tmp_path / "other").mkdir()
    other = Bank(bank.database, tmp_path / "other", create=False)
    bank.start_writing(seed=5)
    with bank.capturing(), other.capturing():
        for one in (bank, other):
            one.wait_until(partial(one.has_reached, ""), "the backfill")
        bank.stop_writing()
        fence = bank.fence()
        for one in (bank, other):
            one.wait_until(partial(one.has_reached, fence), "the log to pass the fence")
    for one in (bank, other):
        one.assert_log_equals_source()


def test_full_disk_stops_clean_and_capture_resumes_when_there_is_room(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L08: what does not fit is not acknowledged; when there is room again it arrives, once."""
    many = "INSERT INTO entries (account, amount) SELECT i, i FROM generate_series(1, 3000) i"
    check_full_disk(bank, bank.database.execute, many, monkeypatch)


def test_late_sealing_holds_the_capture_up(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge sees only what is sealed, and a stopping daemon seals the rest first: the wait ends."""
    free = threading.Event()
    free.set()
    original = FileLog.seal_pending

    def seal_pending(self: FileLog) -> object:
        assert free.wait(60)
        return original(self)

    monkeypatch.setattr(FileLog, "seal_pending", seal_pending)
    monkeypatch.setattr(FileLog, "seal_due", lambda self, now_s: self._log_end.at_cut)
    monkeypatch.setattr(log_writes, "UNSEALED_MAX", 3)
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
        free.clear()
        for number in range(30):
            bank.database.execute(f"INSERT INTO entries (account, amount) VALUES ({number}, 1)")
            time.sleep(0.02)
        fence = bank.fence()
        time.sleep(0.5)
        assert not bank.has_reached(fence)
        free.set()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to continue")
    bank.assert_log_equals_source()


def test_table_rewritten_during_its_backfill_is_read_from_the_start(bank: Bank) -> None:
    """W27, P26: VACUUM FULL moves every row; a range of pages no longer means anything."""
    bank.configure(backfill={"chunk_time_target_ms": 5, "rows_per_second_max": 4000})
    seen: list[str] = []
    with bank.capturing(on_event=lambda event, _fields: seen.append(event)):
        bank.wait_until(lambda: "range chunk read" in seen, "the first chunk")
        for _ in range(3):
            bank.database.execute("VACUUM FULL accounts")
            time.sleep(0.2)
        bank.database.execute("UPDATE accounts SET balance = 1 WHERE id % 5 = 0")
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the backfill to end")
    assert "table rewritten" in seen
    bank.assert_log_equals_source()


def test_unchanged_toast_of_a_row_that_moved_still_arrives(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """W11, the moved-row trap: rows with an unchanged TOAST value that move to pages before the cursor, and beyond the
    bound.

    The log does not repeat the value, and no chunk sees the row in its new place: only the read by key returns it.
    """
    bank.configure(backfill={"chunk_time_target_ms": 5, "rows_per_second_max": 6000})
    monkeypatch.setattr(chunks, "FIRST_PAGES", 4)
    # Full pages, and room on the early ones, so that an update moves a late row back there or past the bound.
    bank.database.execute("ALTER TABLE accounts SET (fillfactor = 100)")
    bank.database.execute("VACUUM FULL accounts")
    bank.database.execute("DELETE FROM accounts WHERE id < 600")
    bank.database.execute("VACUUM accounts")
    seen: list[str] = []
    with bank.capturing(on_event=lambda event, _fields: seen.append(event)) as capture:
        bank.wait_until(lambda: pages_read(capture.status()) > 8, "the first pages")
        for third in range(3):  # every row is moved at some time of the backfill
            bank.database.execute(
                f"UPDATE accounts SET balance = balance + 1 WHERE id % 3 = 0 AND id % 9 = {third * 3}"
            )
            bank.database.execute("UPDATE accounts SET id = id + 20000 WHERE id % 3 = 0 AND id % 100 = 0")
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the backfill to end")
    assert "keys chunk read" in seen
    bank.assert_log_equals_source()


def pages_read(status: dict[str, object]) -> int:
    tables = status.get("tables")
    if not isinstance(tables, dict) or "public.accounts" not in tables:
        return 0
    return int(tables["public.accounts"]["units_done"])


def test_memory_does_not_grow_with_the_transaction(bank: Bank) -> None:
    """P33, O11: a transaction of 1,000,000 rows takes hardly more memory than one of 50,000."""
    daemon = bank.daemon()
    bank.wait_until(lambda: bank.has_reached(""), "the first backfill", daemon)
    peaks, rows_before = [], rows_of(bank)
    for rows in (50_000, 1_000_000):
        bank.database.execute(f"INSERT INTO entries (account, amount) SELECT i, 1 FROM generate_series(1, {rows}) i")
        bank.wait_until(partial(bank.has_reached, bank.fence()), f"{rows} rows", daemon)
        peaks.append(peak_rss_mib(daemon.pid))
    print(f"peak RSS after 50,000 and 1,000,000 rows in one transaction: {peaks[0]:.0f} and {peaks[1]:.0f} MiB")
    bank.catch_up_and_stop(daemon)
    assert rows_of(bank) == rows_before + 1_050_000
    report = check(bank.log, deep=True)
    assert report.is_whole, report.faults
    assert peaks[1] < peaks[0] + 128, peaks


def rows_of(bank: Bank) -> int:
    return reader.newest_checkpoint(bank.log).next_offset - 1


def peak_rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")

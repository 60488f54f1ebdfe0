"""Capture from a standby of PostgreSQL 16 and later: without marks in the log, and with what only it can suffer."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.servers.standby import Standby
from tests.support.daemon.standby_bank import StandbyBank
from tests.support.polling import PATIENCE_S, wait_until

from cdcflow import wiring
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.ports.findings import Finding
from cdcflow.config import load
from cdcflow.errors import ConfigurationError, HistoryLost

pytestmark = pytest.mark.postgres
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def standby() -> Iterator[Standby]:
    """Of a primary that other tests of this module use as well."""
    # No autovacuum: it takes ids of transactions, and a test counts those of cdcflow.
    with PostgresServer(settings={"autovacuum": "off"}) as primary, Standby(primary) as server:
        yield server


@pytest.fixture
def own_standby() -> Iterator[Standby]:
    """Of a separate primary: the test promotes or breaks it."""
    with PostgresServer() as primary, Standby(primary) as server:
        yield server


@pytest.fixture
def bank(standby: Standby, tmp_path: Path) -> Iterator[StandbyBank]:
    with new_bank(standby, tmp_path) as made:
        yield made


@contextmanager
def new_bank(standby: Standby, folder: Path, **options: Any) -> Iterator[StandbyBank]:
    database = standby.primary.create_database(f"bank_{next(_numbers)}")
    made = StandbyBank(standby, database, folder, **options)
    yield made
    made.stop_writing()
    if standby.is_running and standby.primary.is_running:
        mine = f"FROM pg_replication_slots WHERE NOT active AND database = '{database.name}'"
        Database(standby, database.name).execute(f"SELECT pg_drop_replication_slot(slot_name) {mine}")


def capture_once(bank: StandbyBank) -> None:
    """A capture that reads the tables, and stops."""
    with bank.standby.snapshots(), bank.capturing():
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the backfill")


def test_standby_is_captured_under_load_with_transactions_that_stay_open(bank: StandbyBank) -> None:
    """W06: transactions that run at the primary while the tables are read are in no list of the standby's snapshots.
    One commits during the backfill, one after it."""
    capture_once(bank)
    with bank.database.connect(autocommit=False) as long, bank.database.connect(autocommit=False) as longer:
        long.execute("UPDATE accounts SET owner = 'long' WHERE id % 7 = 0")
        long.execute("INSERT INTO notices SELECT 90, true, '{long}' FROM generate_series(1, 5)")
        longer.execute("UPDATE accounts SET owner = 'longer' WHERE id % 7 = 1")
        longer.execute("DELETE FROM notices WHERE id = 7")
        bank.start_writing(seed=6)
        with bank.capturing(backfill=()):
            bank.wait_until(lambda: generations(bank) == {2}, "another backfill")
            bank.wait_until(lambda: read_pages(bank) > 10, "some chunks")
            long.commit()
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the backfill")
            longer.commit()
        bank.stop_writing()
    daemon = bank.daemon()
    bank.assert_verified(daemon)
    bank.catch_up_and_stop(daemon)
    bank.assert_log_equals_source()


def read_pages(bank: StandbyBank) -> int:
    progress = Progress.from_json(bank.reader.newest_checkpoint().progress).tables
    return sum(table.units_done for table in progress.values())


def test_nothing_is_written_at_the_primary(bank: StandbyBank) -> None:
    """Neither marks nor tables: what the standby reads is what the application wrote."""
    made = "SELECT count(*) FROM pg_class, pg_namespace n WHERE relnamespace = n.oid AND nspname !~ '^pg_'"
    before = bank.database.execute(made)
    capture_once(bank)
    assert bank.database.execute(made) == before
    next_id = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
    ids = bank.database.execute(next_id)
    with bank.capturing(backfill=()):  # no session writes: no commit arrives at the standby
        bank.wait_until(lambda: generations(bank) == {2} and bank.has_reached(""), "the backfill of an idle database")
        time.sleep(2)
    assert bank.database.execute(next_id) == ids


def test_publication_is_created_as_the_error_explains(standby: Standby, tmp_path: Path) -> None:
    """What is printed is run on the primary, to the letter; without a name in the settings, too."""
    with new_bank(standby, tmp_path, publish=False) as bank:
        bank.configure(publication=None)
        run_on_primary(bank, capture_until_refused(bank))
        capture_once(bank)
        bank.database.execute("CREATE TABLE later (id int PRIMARY KEY)")
        bank.database.execute("INSERT INTO later VALUES (1)")
        standby.wait_for_replay()
        bank.configure(publication=None, tables=["public.*", "public.later"])
        run_on_primary(bank, capture_until_refused(bank))
        bank.tables = (*bank.tables, "later")
        capture_once(bank)
        bank.assert_log_equals_source()


def capture_until_refused(bank: StandbyBank) -> str:
    """The remedy of the error that a start ends with."""
    with pytest.raises(ConfigurationError) as refused:
        bank.capture_to_its_end()
    return refused.value.remedy or ""


def run_on_primary(bank: StandbyBank, remedy: str) -> None:
    """Follow a remedy of the form `run on the primary: STATEMENT`."""
    found = re.fullmatch(r"run on the primary: (.+)", remedy)
    assert found, remedy
    bank.database.execute(found[1])
    bank.standby.wait_for_replay()


@pytest.mark.long
def test_new_table_is_captured_once_the_primary_publishes_it(bank: StandbyBank) -> None:
    """A table that a wildcard selects is skipped until then, doctor names the statement, and the others continue."""
    capture_once(bank)
    with bank.capturing() as capture:
        bank.database.execute("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1)")
        bank.wait_until(lambda: "public.later" in str(capture.status().get("left_out")), "the table to be skipped")
        (found,) = [f for f in errors_of_doctor(bank) if f.subject == "public.later"]
        statement = (found.remedy or "").removeprefix("on the primary: run ")
        bank.database.execute(statement)
        bank.database.execute("INSERT INTO later VALUES (2)")
        fence = bank.fence()
        done = "public.later"
        bank.wait_until(lambda: bank.has_reached(fence) and done in tables_in(bank), "the table's backfill")
    bank.tables = (*bank.tables, "later")
    bank.assert_log_equals_source()


def errors_of_doctor(bank: StandbyBank) -> list[Finding]:
    return [f for f in wiring.doctor(load(bank.config_path)) if f.level == "error"]


def tables_in(bank: StandbyBank) -> set[str]:
    return {str(table) for table in Progress.from_json(bank.reader.newest_checkpoint().progress).tables}


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"log_budget": "1GiB", "log_budget_then": "release"}, "set source.log_budget_then: stop"),
        ({"failover": True}, "set source.failover: false"),
        ({"control_table": "public.commands"}, "remove source.control_table"),
    ],
    ids=["release", "failover", "control-table"],
)
def test_setting_that_needs_writes_is_refused(bank: StandbyBank, settings: Mapping[str, Any], remedy: str) -> None:
    bank.configure(**settings)
    assert remedy in capture_until_refused(bank)
    assert any(remedy in (f.remedy or "") for f in errors_of_doctor(bank))


def test_log_of_a_primary_is_not_continued_from_its_standby(bank: StandbyBank) -> None:
    """The address may lead to another server by mistake. An operator may confirm it."""
    bank.configure(url=bank.database.url)
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfill")
    bank.standby.wait_for_replay()
    bank.configure()
    remedy = capture_until_refused(bank)
    assert "point source.url at the primary" in remedy
    assert "--accept-history-loss" in remedy
    bank.write(seed=3, transactions=30)
    with bank.standby.snapshots(), bank.capturing(accept_history_loss=True):
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the tables to be read again")
    bank.assert_log_equals_source()


@pytest.mark.long
def test_lost_slot_stops_with_its_reason(own_standby: Standby, tmp_path: Path) -> None:
    """The primary removes rows of its catalog that the slot needs. The remedy reads all tables again."""
    own_standby.reload(hot_standby_feedback="off", primary_slot_name="")
    with new_bank(own_standby, tmp_path) as bank:
        capture_once(bank)
        for number in range(5):
            bank.database.execute(f"CREATE TABLE gone{number} (id int)")
            bank.database.execute(f"DROP TABLE gone{number}")
        for catalog in ("pg_class", "pg_attribute", "pg_type"):
            bank.database.execute(f"VACUUM {catalog}")
        own_standby.wait_for_replay()
        bank.write(seed=4, transactions=20)
        with pytest.raises(HistoryLost, match=r"rows_removed.*hot_standby_feedback") as lost:
            bank.capture_to_its_end()
        assert "--accept-history-loss" in (lost.value.remedy or "")
        with bank.standby.snapshots(), bank.capturing(accept_history_loss=True):
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the tables to be read again")
        bank.assert_log_equals_source()


@pytest.mark.long
def test_log_that_a_standby_limits_by_itself_is_continued_with_its_rows_kept(
    own_standby: Standby, tmp_path: Path
) -> None:
    """P38: what docs/budget.md recommends in place of a release, which a standby cannot note."""
    own_standby.reload(max_slot_wal_keep_size="16MB")
    with new_bank(own_standby, tmp_path) as bank:
        capture_once(bank)
        bank.write(seed=5, transactions=30)
        for _ in range(4):
            bank.database.execute("SELECT pg_switch_wal()")
            bank.write(seed=6, transactions=1)
        bank.database.execute("CHECKPOINT")
        own_standby.wait_for_replay()
        own_standby.execute("CHECKPOINT")
        lost = "SELECT 1 FROM pg_replication_slots WHERE wal_status = 'lost'"
        wait_until(lambda: own_standby.execute(lost) != [], "the slot to be invalidated")
        with pytest.raises(HistoryLost) as error:
            bank.capture_to_its_end()
        assert error.value.runbook == "slot-lost"
        own_standby.reload(max_slot_wal_keep_size="")
        with started(bank, "run", "--accept-history-loss", "--keep-rows") as daemon, own_standby.snapshots():
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_passed(fence), "the daemon to capture", daemon)
            with started(bank, "repair") as repair:
                assert repair.wait(PATIENCE_S) == 0, bank.output()
            daemon.terminate()
            assert daemon.wait(PATIENCE_S) == 0, bank.output()
        bank.assert_log_equals_source()
        assert 1 in generations(bank), "no table kept its rows"


@contextmanager
def started(bank: StandbyBank, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of cdcflow, in a process."""
    with (bank.folder / "daemon.out").open("ab") as output:
        arguments = [sys.executable, "-m", "cdcflow", *command, "--config", str(bank.config_path)]
        process = subprocess.Popen(arguments, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_promotion_under_the_daemon_is_survived(own_standby: Standby, tmp_path: Path) -> None:
    """The slot stays on the server, its timeline changes, and chunks are then read with written marks."""
    with new_bank(own_standby, tmp_path) as bank:
        capture_once(bank)
        daemon = bank.daemon()
        bank.write(seed=8, transactions=50)
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_passed(fence), "the daemon to capture", daemon)
        bank.promote()
        bank.write(seed=9, transactions=50)
        bank.assert_verified(daemon)
        bank.database.execute("INSERT INTO entries (account, amount) SELECT i, 7 FROM generate_series(1, 500) i")
        bank.catch_up_and_stop(daemon)
        bank.assert_log_equals_source()
        assert generations(bank) == {1}, "a table was read again"


def generations(bank: StandbyBank) -> set[int]:
    return {t.generation for t in Progress.from_json(bank.reader.newest_checkpoint().progress).tables.values()}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_promotion_in_the_middle_of_a_backfill(own_standby: Standby, tmp_path: Path, seed: int) -> None:
    """After a random number of pages; some daemons are killed before."""
    dice = random.Random(seed)
    with new_bank(own_standby, tmp_path) as bank:
        bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
        daemon = bank.daemon()
        with own_standby.snapshots():
            bank.wait_until(bank.reader.exists, "the log", daemon)
            pages = dice.randint(1, 60)
            bank.start_writing(seed=seed)
            bank.wait_until(lambda: read_pages(bank) > pages, "a part of the backfill", daemon)
            bank.stop_writing()
        if dice.random() < 0.5:
            daemon.kill()
            daemon.wait()
        bank.promote()
        bank.write(seed=seed + 100, transactions=50)
        if daemon.poll() is not None:
            daemon = bank.daemon()
        bank.assert_verified(daemon)
        bank.catch_up_and_stop(daemon)
        bank.assert_log_equals_source()


@pytest.mark.long
@pytest.mark.parametrize("point", [("after:decode", "9"), ("after:low mark", "3"), ("after:chunk read", "4"),
                                   ("after:high mark", "3"), ("before:release", "3"), ("after:sync", "6")],
                         ids=lambda point: point[0])  # fmt: skip
def test_killed_daemon_loses_and_doubles_nothing(bank: StandbyBank, point: tuple[str, str]) -> None:
    """O01, W23, W24 without marks in the log."""
    bank.start_writing(seed=sum(point[0].encode()))
    with bank.standby.snapshots():
        killed = bank.daemon(*point)
        bank.assert_killed(killed, live=True)
        again = bank.daemon()
        before = bank.transactions
        bank.wait_until(lambda: bank.transactions > before + 30, "the writer to continue", again)
    bank.stop_writing()
    bank.assert_verified(again)
    bank.catch_up_and_stop(again)
    bank.assert_log_equals_source()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_random_load_with_paused_delayed_and_killed_replay(own_standby: Standby, tmp_path: Path, seed: int) -> None:
    """Long transactions at the primary, replay that is paused, delayed, or begins again at an earlier place after the
    standby was killed, and daemons that are killed: in the end both comparisons find log and primary equal."""
    dice = random.Random(seed)
    with new_bank(own_standby, tmp_path) as bank:
        bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
        with own_standby.snapshots():
            daemon = bank.daemon()
            bank.wait_until(bank.reader.exists, "the log", daemon)
            bank.start_writing(seed=seed)
            for _ in range(8):
                daemon = disturb(bank, daemon, dice)
                time.sleep(dice.random())
            bank.stop_writing()
        own_standby.reload(recovery_min_apply_delay="")
        own_standby.execute("SELECT pg_wal_replay_resume()")
        bank.assert_verified(daemon)
        bank.catch_up_and_stop(daemon)
        bank.assert_log_equals_source()


def disturb(bank: StandbyBank, daemon: Any, dice: random.Random) -> Any:
    """One of the things that happen to a standby and its daemon; returns the running daemon."""
    standby = bank.standby
    match dice.choice(["pause", "delay", "kill standby", "kill daemon", "long", "rewrite"]):
        case "pause":
            standby.execute("SELECT pg_wal_replay_pause()")
            time.sleep(dice.random())
            standby.execute("SELECT pg_wal_replay_resume()")
        case "delay":
            standby.reload(recovery_min_apply_delay=dice.choice(["200ms", "1s", ""]))
        case "kill standby":
            standby.kill()
            standby.start()
        case "kill daemon":
            daemon.kill()
            daemon.wait()
            return bank.daemon()
        case "long":
            with bank.database.connect(autocommit=False) as connection:
                connection.execute("UPDATE accounts SET owner = 'long' WHERE id %% 11 = %s", (dice.randint(0, 10),))
                connection.execute("DELETE FROM notices WHERE id = %s", (dice.randint(0, 39),))
                time.sleep(dice.random())
        case "rewrite":
            bank.database.execute("ALTER TABLE entries ALTER note TYPE text USING upper(note)")
    return daemon


@pytest.mark.long
def test_standby_that_has_not_replayed_the_log_is_waited_for(own_standby: Standby, tmp_path: Path) -> None:
    """A standby that was killed replays its log again from an earlier place. Rows and catalogs that are read before it
    shows everything in the log would undo what the log has."""
    with new_bank(own_standby, tmp_path) as bank:
        own_standby.primary.execute("CHECKPOINT")
        own_standby.wait_for_replay()
        own_standby.execute("CHECKPOINT")
        bank.write(seed=1, transactions=50)
        capture_once(bank)
        own_standby.kill()
        own_standby.start(recovery_min_apply_delay="1h")
        position = bank.reader.newest_checkpoint().position
        assert position is not None
        assert own_standby.execute(f"SELECT pg_last_wal_replay_lsn() < '{position}'") == [(True,)]
        reasons: list[str] = []
        with bank.capturing(on_event=lambda event, fields: reasons.append(str(dict(fields).get("reason")))):
            bank.wait_until(lambda: any("has replayed its log up to" in r for r in reasons), "the start to wait")
            bank.write(seed=2, transactions=20)
            own_standby.reload(recovery_min_apply_delay="")
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the standby to have replayed the log")
        bank.assert_log_equals_source()

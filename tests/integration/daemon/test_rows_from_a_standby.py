"""Rows that are read from a standby while changes are captured from its primary (hard cases W01, W06, W13)."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tests.servers.postgres import Database, PostgresServer, of_other_identity
from tests.servers.proxy import TcpProxy
from tests.servers.standby import Standby
from tests.support.daemon.changed_settings import Changing
from tests.support.daemon.read_bank import ReadBank

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.model.change import Uint64s
from cdcflow.sources.engine import replica_wait
from cdcflow.sources.engine.connections import Session
from cdcflow.sources.postgres.backfill_standby import BackfillFences, BackfillStandby
from cdcflow.sources.postgres.connection import Connection, Connector, query_row
from cdcflow.sources.postgres.fences import PrimaryFences
from cdcflow.sources.postgres.identity import identify
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.replay_fences import DeliveredCommits, ReplayVisibility

pytestmark = pytest.mark.postgres
_numbers = itertools.count(1)
READ_BY_SCANS = "SELECT coalesce(sum(seq_tup_read), 0)::int FROM pg_stat_user_tables"


@pytest.fixture(scope="module")
def standby() -> Iterator[Standby]:
    """Of a primary that other tests of this module use as well."""
    with PostgresServer() as primary, Standby(primary) as server:
        yield server


@pytest.fixture
def own_standby() -> Iterator[Standby]:
    """Of a separate primary: the test promotes or breaks it."""
    with PostgresServer() as primary, Standby(primary) as server:
        yield server


@pytest.fixture
def other_standby() -> Iterator[Standby]:
    """Of a primary with another system identifier."""
    with of_other_identity() as primary, Standby(primary) as server:
        yield server


@pytest.fixture
def bank(standby: Standby, tmp_path: Path) -> Iterator[ReadBank]:
    with new_bank(standby, tmp_path) as made:
        yield made


@contextmanager
def new_bank(standby: Standby, folder: Path) -> Iterator[ReadBank]:
    made = ReadBank(standby, standby.primary.create_database(f"bank_{next(_numbers)}"), folder)
    yield made
    made.stop_writing()
    if standby.is_running:
        resume(standby)


def pause(standby: Standby) -> None:
    """Let the standby replay nothing that is written from now on."""
    standby.wait_for_replay()
    standby.execute("SELECT pg_wal_replay_pause()")


def resume(standby: Standby) -> None:
    if standby.execute("SELECT pg_is_in_recovery()") == [(True,)]:
        standby.execute("SELECT pg_wal_replay_resume()")


def given_up(events: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [str(fields["reason"]) for event, fields in events if event == "chunk given up"]


@pytest.mark.long
def test_rows_are_read_at_the_standby_and_marks_written_at_the_primary(bank: ReadBank) -> None:
    """Otherwise a busy primary would gain nothing."""
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfill")
    tables = "SELECT count(*)::int FROM accounts UNION ALL SELECT count(*)::int FROM entries"
    rows = sum(count for (count,) in bank.database.execute(tables))
    at_standby, at_primary = Database(bank.standby, bank.database.name), bank.database
    bank.wait_until(lambda: at_standby.execute(READ_BY_SCANS)[0][0] >= rows, "the standby's statistics")
    before = at_primary.execute(READ_BY_SCANS)[0][0]
    with bank.capturing(backfill=()):
        bank.wait_until(lambda: bank.generations() == {2} and bank.has_reached(""), "another backfill")
    time.sleep(1)  # statistics are reported when a session is idle
    assert at_primary.execute(READ_BY_SCANS)[0][0] - before < rows / 2
    bank.assert_log_equals_source()


@pytest.mark.long
def test_backfill_under_load_with_transactions_that_stay_open(bank: ReadBank) -> None:
    """W06: transactions that run at the primary while the tables are read are in no list of the standby's snapshots.
    One commits during the backfill, one after it; replay is late by more than a chunk takes."""
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the first backfill")
    bank.standby.reload(recovery_min_apply_delay="100ms")
    with bank.database.connect(autocommit=False) as long, bank.database.connect(autocommit=False) as longer:
        long.execute("UPDATE accounts SET owner = 'long' WHERE id % 7 = 0")
        long.execute("INSERT INTO notices SELECT 90, true, '{long}' FROM generate_series(1, 5)")
        longer.execute("UPDATE accounts SET owner = 'longer' WHERE id % 7 = 1")
        longer.execute("DELETE FROM notices WHERE id = 7")
        bank.start_writing(seed=6)
        with bank.capturing(backfill=()):
            bank.wait_until(lambda: bank.generations() == {2}, "another backfill")
            bank.wait_until(lambda: bank.read_units() > 10, "some chunks")
            long.commit()
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the backfill")
            longer.commit()
        bank.stop_writing()
    bank.standby.reload(recovery_min_apply_delay="")
    daemon = bank.daemon()
    bank.assert_verified(daemon)
    bank.catch_up_and_stop(daemon)
    bank.assert_log_equals_source()


def test_bounds_surround_the_snapshot_however_long_it_takes(standby: Standby) -> None:
    """What is replayed after the snapshot, and before the query that reports its place, counts as not seen: a table
    without a key would lose it."""
    database = standby.primary.create_database("bounded")
    database.execute("CREATE TABLE t (id int)")
    pause(standby)
    begin = database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0]
    database.execute("INSERT INTO t VALUES (1)")
    commits = DeliveredCommits(Lsn(0))
    commits.add(np.array([7], np.uint64), np.array([Lsn.parse(begin).value], np.int64))
    primary, replica = (Connector(url, lambda: None) for url in (database.url, standby.url("bounded")))
    session: Session[Connection] = Session(primary, lambda: primary.connect("test"))
    reading = BackfillStandby(replica, identify(primary), session)
    fences = BackfillFences(PrimaryFences("test"), reading, commits)
    connection = replica.connect("test")
    with contextlib.closing(connection), contextlib.closing(fences), fences.look(connection) as seen_at:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        assert connection.execute("SELECT id FROM public.t").fetchall() == []
        resume(standby)
        standby.wait_for_replay()
        visibilities, _ = seen_at(query_row(connection, f"SELECT {fences.snapshot_columns}")[0])
        assert connection.execute("SELECT id FROM public.t").fetchall() == []
        hidden = [visibility.hidden(np.array([7], np.uint64)).tolist() for visibility in visibilities]
    assert [7] in hidden
    primary.close()
    session.close()


CHANGES = ("UPDATE accounts SET owner = 'after' WHERE id = 1", "DELETE FROM accounts WHERE id = 2")


def backfill_while_replay_is_paused(bank: ReadBank, *, expects: str) -> list[str]:
    """Change rows that the standby does not show, and request a backfill. Returns why chunks were abandoned."""
    changing = Changing(bank, bank.configure)
    with changing.capturing() as capture:
        changing.catch_up()
        pause(bank.standby)
        for statement in CHANGES:
            bank.database.execute(statement)
        bank.wait_until(lambda: "'after'" in repr(bank.logged_rows("accounts")), "the changes in the log")
        capture.request("backfill", ["public.accounts"])
        if expects == "wait":
            bank.wait_until(lambda: bool(given_up(changing.events)), "a chunk to be abandoned")
            assert str(bank.standby.port) in str(capture.status()["rows_from"])
            bank.database.execute("INSERT INTO entries (account, amount) VALUES (1, 77)")
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_passed(fence), "the capture to continue")
            resume(bank.standby)
        bank.wait_until(lambda: changing.table("accounts").generation == 2 and bank.has_reached(""), "the backfill")
        resume(bank.standby)
        changing.catch_up()
    return given_up(changing.events)


def first_rows(bank: ReadBank) -> list[object]:
    return [row[1] for row in bank.logged_rows("accounts") if row[0] in (1, 2)]


def test_chunk_waits_until_the_standby_shows_what_was_delivered(
    bank: ReadBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W01, W13: the log has a change and a deletion that the standby does not show. The capture continues."""
    monkeypatch.setattr(replica_wait, "REPLAY_WAIT_S", 0.5)
    reasons = backfill_while_replay_is_paused(bank, expects="wait")
    assert any("lags: it has replayed" in reason for reason in reasons), reasons
    assert first_rows(bank) == ["after"]
    bank.assert_log_equals_source()


@pytest.mark.long
def test_fences_alone_refuse_a_chunk_of_an_earlier_place(bank: ReadBank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is one of two protections: the place that a snapshot is bounded by is the other one."""
    monkeypatch.setattr(BackfillStandby, "wait", lambda *_: None)
    reasons = backfill_while_replay_is_paused(bank, expects="wait")
    refused = ("not visible yet", "the change log has it up to")
    assert any(text in reason for reason in reasons for text in refused), reasons
    assert first_rows(bank) == ["after"]
    bank.assert_log_equals_source()


def test_trap_is_real_without_wait_and_fences(bank: ReadBank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without both: the old value is in the log again, and the deleted row. The recipe shows the fault."""

    def none_of(_: ReplayVisibility, xids: Uint64s) -> Uint64s:
        return xids[:0]

    monkeypatch.setattr(BackfillStandby, "wait", lambda *_: None)
    monkeypatch.setattr(ReplayVisibility, "hidden", none_of)
    monkeypatch.setattr(DeliveredCommits, "fence", lambda _, bound: ReplayVisibility(bound))
    backfill_while_replay_is_paused(bank, expects="nothing")
    assert first_rows(bank) == ["owner 1", "owner 2"]


STATEMENTS = (
    "ALTER TABLE entries ADD COLUMN place text DEFAULT 'here'",
    "ALTER TABLE entries ALTER amount TYPE numeric(16,4) USING amount * 2",
    "ALTER TABLE accounts RENAME COLUMN owner TO holder",
    "TRUNCATE notices",
    "INSERT INTO notices VALUES (1, true, '{new}')",
    "VACUUM FULL accounts",
    "ALTER TABLE entries DROP COLUMN note",
    "CREATE TABLE later (id int PRIMARY KEY, v int); INSERT INTO later SELECT i, i FROM generate_series(1, 3000) i",
)


def has_read(bank: ReadBank, units: int) -> Callable[[], bool]:
    return lambda: bank.read_units() >= units


@pytest.mark.long
def test_statements_that_alter_tables_between_primary_and_standby(bank: ReadBank) -> None:
    """What a chunk's columns mean is decided by its place in the log, not by what the primary has at the time."""
    bank.standby.reload(recovery_min_apply_delay="100ms")
    bank.configure(backfill={"chunk_rows_max": 300, "chunk_time_target_ms": 5})
    with bank.capturing():
        bank.wait_until(bank.reader.exists, "the log")
        for number, statement in enumerate(STATEMENTS):
            bank.wait_until(has_read(bank, 3 * number), "a part of the backfill")
            for one in statement.split("; "):
                bank.database.execute(one)
        bank.tables = (*bank.tables, "later")
        fence = bank.fence()
        bank.wait_until(lambda: len(bank.progress.tables) == 4 and bank.has_reached(fence), "the backfill")
    bank.standby.reload(recovery_min_apply_delay="")
    bank.assert_log_equals_source()


def test_standby_that_is_killed_and_started_again(own_standby: Standby, tmp_path: Path) -> None:
    """Its chunks are read again; no attempt of the capture ends."""
    with new_bank(own_standby, tmp_path) as bank:
        bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
        changing = Changing(bank, bank.configure)
        with changing.capturing() as capture:
            bank.wait_until(lambda: bank.reader.exists() and bank.read_units() > 10, "a part of the backfill")
            own_standby.kill()
            bank.write(seed=1, transactions=20)
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_passed(fence), "the capture to continue")
            assert not bank.has_reached(fence)
            own_standby.start()
            changing.catch_up()
            assert capture.counts()["attempts"] == 1
        assert given_up(changing.events)
        bank.assert_log_equals_source()


def test_promoted_standby_is_not_read_from(own_standby: Standby, tmp_path: Path) -> None:
    """It has rows that the primary does not have. The remedy is followed: another server, in a new settings file."""
    with new_bank(own_standby, tmp_path) as bank:
        bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
        changing = Changing(bank, bank.configure)
        with changing.capturing() as capture:
            bank.wait_until(lambda: bank.reader.exists() and bank.read_units() > 10, "a part of the backfill")
            own_standby.promote()
            Database(own_standby, bank.database.name).execute("UPDATE accounts SET owner = 'split'")
            bank.write(seed=2, transactions=20)
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_passed(fence), "the capture to continue")
            bank.wait_until(lambda: "it was promoted" in str(given_up(changing.events)), "the chunk to be abandoned")
            assert "it was promoted" in errors_of_doctor(bank) or "takes writes" in errors_of_doctor(bank)
            bank.address = None
            bank.configure()
            changing.reload(capture)
            changing.catch_up()
        assert "split" not in repr(bank.logged_rows("accounts"))
        bank.assert_log_equals_source()


def errors_of_doctor(bank: ReadBank) -> str:
    found = [f for f in wiring.doctor(load(bank.config_path)) if f.level == "error"]
    assert all(f.subject == "source.backfill.url" for f in found), found
    return " ".join(f"{f.text}: {f.remedy}" for f in found)


@pytest.mark.long
def test_other_servers_are_refused_at_the_first_start(
    bank: ReadBank, wheel_server: PostgresServer, standby: Standby
) -> None:
    """Another server, another database, the primary itself: their rows have no place in the source's log."""
    elsewhere = wheel_server.create_database(bank.database.name)
    wrong: Mapping[str, str] = {
        elsewhere.url: "it takes writes",
        bank.database.url: "it takes writes",
        standby.url("postgres"): "its database is postgres",
    }
    for address, reason in wrong.items():
        bank.address = address
        bank.configure()
        with pytest.raises(ConfigurationError, match=reason) as refused:
            bank.capture_to_its_end()
        assert "set source.backfill.url to a running replica" in (refused.value.remedy or "")
        assert reason.removeprefix("it ") in errors_of_doctor(bank)
    elsewhere.drop()
    bank.address = standby.url(bank.database.name)
    bank.configure()
    assert errors_of_doctor(bank) == ""
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfill from the right one")
    bank.assert_log_equals_source()


@pytest.mark.long
def test_address_that_leads_to_another_server(bank: ReadBank, other_standby: Standby) -> None:
    """An address may lead elsewhere at any time: to a standby of another server, with a table of the same name."""
    other = other_standby.primary.create_database(bank.database.name)
    other.execute("CREATE TABLE accounts AS SELECT i AS id, 'other' AS owner FROM generate_series(1, 500) i")
    other_standby.wait_for_replay()
    with TcpProxy(bank.standby.port) as proxy:
        bank.address = (bank.address or "").replace(str(bank.standby.port), str(proxy.port))
        bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
        changing = Changing(bank, bank.configure)
        with changing.capturing() as capture:
            bank.wait_until(lambda: bank.reader.exists() and bank.read_units() > 10, "a part of the backfill")
            proxy.cut()
            proxy.target = other_standby.port
            proxy.mend()
            bank.write(seed=3, transactions=20)
            bank.wait_until(lambda: "it is a copy of server" in str(given_up(changing.events)), "the refusal")
            proxy.cut()
            proxy.target = bank.standby.port
            proxy.mend()
            changing.catch_up()
            assert capture.counts()["attempts"] == 1
    bank.assert_log_equals_source()


@pytest.mark.long
def test_standby_of_a_primary_that_was_set_back(own_standby: Standby, tmp_path: Path) -> None:
    """Its identifier and timeline are the primary's, and its rows never existed there."""
    primary = own_standby.primary
    with new_bank(own_standby, tmp_path) as bank:
        primary.stop()
        shutil.copytree(primary.data, tmp_path / "before", symlinks=True)
        primary.start()
        with bank.capturing():
            bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfill")
        bank.database.execute("UPDATE accounts SET owner = 'never'")
        own_standby.wait_for_replay()
        primary.kill()
        owner = primary.data.stat()
        shutil.rmtree(primary.data)
        shutil.copytree(tmp_path / "before", primary.data, symlinks=True)
        give_to(primary.data, owner.st_uid, owner.st_gid)
        primary.start()
        changing = Changing(bank, bank.configure)
        with bank.capturing(on_event=changing.on_event, accept_history_loss=True) as capture:
            bank.wait_until(lambda: "it is ahead" in str(given_up(changing.events)), "the refusal", patience_s=60)
            bank.address = None
            bank.configure()
            changing.reload(capture)
            changing.catch_up()
        assert "never" not in repr(bank.logged_rows("accounts"))
        bank.assert_log_equals_source()


def give_to(folder: Path, user: int, group: int) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, group, follow_symlinks=False)


def test_start_does_not_need_the_standby(own_standby: Standby, tmp_path: Path) -> None:
    """Changes are captured from the first start, and rows are read once the standby answers."""
    with new_bank(own_standby, tmp_path) as bank:
        own_standby.stop()
        with bank.capturing():
            bank.wait_until(bank.reader.exists, "the log")
            bank.write(seed=5, transactions=20)
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_passed(fence), "the capture to begin")
            own_standby.start()
            bank.wait_until(lambda: bank.has_reached(fence), "the backfill")
        bank.assert_log_equals_source()


def test_rows_of_a_standby_are_not_read_at_another_standby(bank: ReadBank) -> None:
    bank.configure(url=bank.address, publication="bank")
    with pytest.raises(ConfigurationError, match="a standby") as refused:
        bank.capture_to_its_end()
    assert "remove source.backfill.url" in (refused.value.remedy or "")


def test_password_of_the_address_is_refused_and_not_repeated(bank: ReadBank) -> None:
    settings = yaml.safe_load(bank.config_path.read_text())
    settings["source"]["backfill"]["url"] = "postgresql://cdcflow:hunter2@host/shop"
    bank.config_path.write_text(yaml.safe_dump(settings))
    with pytest.raises(CdcflowError) as refused:
        load(bank.config_path)
    assert "backfill.url" in str(refused.value)
    assert "hunter2" not in f"{refused.value} {refused.value.remedy}"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_random_load_with_paused_delayed_killed_and_exchanged_standbys(
    own_standby: Standby, tmp_path: Path, seed: int
) -> None:
    """Long transactions at the primary, replay that is paused, delayed, or begins again at an earlier place, statements
    that alter tables, and daemons that are killed: in the end both comparisons find log and primary equal."""
    dice = random.Random(seed)
    with new_bank(own_standby, tmp_path) as bank:
        bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
        daemon = bank.daemon()
        bank.wait_until(bank.reader.exists, "the log", daemon)
        bank.start_writing(seed=seed)
        for _ in range(12):
            daemon = disturb(bank, daemon, dice)
            time.sleep(dice.random())
        own_standby.reload(recovery_min_apply_delay="")
        resume(own_standby)
        bank.wait_until(lambda: bank.has_reached(""), "the backfill under load", daemon)
        bank.stop_writing()
        bank.assert_verified(daemon)
        bank.catch_up_and_stop(daemon)
        bank.assert_log_equals_source()


def disturb(bank: ReadBank, daemon: Any, dice: random.Random) -> Any:
    """One of the things that happen to a standby, its primary and the daemon; returns the running daemon."""
    standby = bank.standby
    match dice.choice(["pause", "delay", "kill standby", "kill daemon", "long", "rewrite", "vacuum"]):
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
        case "vacuum":
            bank.database.execute("VACUUM FULL accounts")
    return daemon

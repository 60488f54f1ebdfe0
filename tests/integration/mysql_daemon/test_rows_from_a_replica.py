"""Rows that are read from a replica while changes are captured from its primary (hard cases W01, W03, W13)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.mysql import MySQLDatabase, MySQLServer
from tests.support.daemon.changed_settings import Changing
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.mysql import replication

from cdcflow import wiring
from cdcflow.capture.interleave.progress import Progress
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Uint64s
from cdcflow.sources.engine import replica_wait
from cdcflow.sources.engine.replica_wait import ReplicaWait
from cdcflow.sources.mysql.backfill_replica import BackfillReplica
from cdcflow.sources.mysql.fences import GtidVisibility

pytestmark = [pytest.mark.mysql, pytest.mark.long]

NAME = "read_bank"
STRICT = {"mariadb": {"gtid_strict_mode": "ON"}, "mysql": {}}


class ReadBank(MySQLBank):
    """Sessions write to the primary, and rows are read from the replica."""

    def __init__(self, replica: MySQLServer, database: MySQLDatabase, folder: Path) -> None:
        self.replica = replica
        self.address: str | None = replica.url()
        super().__init__(database, folder)

    def configure(self, **source: Any) -> Any:
        reading = {} if self.address is None else {"url": self.address}
        backfill = {"chunk_time_target_ms": 20, "chunk_rows_max": 600, **reading, **source.pop("backfill", {})}
        return super().configure(backfill=backfill, **source)

    @property
    def progress(self) -> Progress:
        return Progress.from_json(self.reader.newest_checkpoint().progress)

    def generations(self) -> set[int]:
        return {table.generation for table in self.progress.tables.values()}

    def read_rows(self) -> int:
        return sum(table.rows for table in self.progress.tables.values())

    def pause(self) -> None:
        """Let the replica execute nothing that is written from now on."""
        replication.wait_until_caught_up(self.replica, self.database.server)
        replication.stop(self.replica)

    def resume(self) -> None:
        replication.start(self.replica)


@pytest.fixture
def replica(own_mysql: MySQLServer) -> Iterator[MySQLServer]:
    with replication.replica_of(own_mysql, STRICT[own_mysql.flavor]) as server:
        replication.follow(server, own_mysql)
        yield server


@pytest.fixture
def bank(own_mysql: MySQLServer, replica: MySQLServer, tmp_path: Path) -> Iterator[ReadBank]:
    made = ReadBank(replica, own_mysql.create_database(NAME), tmp_path)
    yield made
    made.stop_writing()


def given_up(changing: Changing) -> list[str]:
    return [str(fields["reason"]) for event, fields in changing.events if event == "chunk given up"]


def test_backfill_under_load_with_transactions_that_stay_open(bank: ReadBank) -> None:
    """The rows are the replica's, the marks the primary's, and both comparisons find no difference."""
    replication.wait_until_caught_up(bank.replica, bank.database.server)
    questions = "SHOW GLOBAL STATUS LIKE 'Handler_read_next'"
    before = int(bank.replica.execute(questions)[0][1])
    bank.start_writing(seed=6)
    with bank.database.session(autocommit=False) as long, long.cursor() as cursor:
        cursor.execute("UPDATE accounts SET owner = 'long' WHERE id % 700 = 0")
        with bank.capturing():
            bank.wait_until(lambda: bank.reader.exists() and bank.read_rows() > 1000, "some chunks")
            long.commit()
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the backfill under load")
        bank.stop_writing()
    assert int(bank.replica.execute(questions)[0][1]) - before > 10_000
    daemon = bank.daemon()
    bank.assert_verified(daemon)
    bank.catch_up_and_stop(daemon)
    bank.assert_log_equals_source()


CHANGES = ("UPDATE accounts SET owner = 'after' WHERE id = 1", "DELETE FROM accounts WHERE id = 2")


def backfill_while_replication_stands_still(bank: ReadBank, *, expects: str) -> list[str]:
    """Change rows that the replica does not show, and request a backfill. Returns why chunks were abandoned."""
    changing = Changing(bank, bank.configure)
    table = f"{NAME}.accounts"
    with changing.capturing() as capture:
        changing.catch_up()
        bank.pause()
        bank.database.execute(*CHANGES)
        bank.wait_until(lambda: "'after'" in repr(bank.logged_rows("accounts")), "the changes in the log")
        capture.request("backfill", [table])
        if expects == "wait":
            bank.wait_until(lambda: bool(given_up(changing)), "a chunk to be abandoned")
            assert str(bank.replica.port) in str(capture.status()["rows_from"])
            bank.database.execute("INSERT INTO entries (account, amount) VALUES (1, 77)")
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_passed(fence), "the capture to continue")
            bank.resume()
        bank.wait_until(lambda: changing.table("accounts").generation == 2 and bank.has_reached(""), "the backfill")
        if expects != "wait":
            bank.resume()
        changing.catch_up()
    return given_up(changing)


def first_rows(bank: ReadBank) -> list[object]:
    return [row[1] for row in bank.logged_rows("accounts") if row[0] in (1, 2)]


def test_chunk_waits_until_the_replica_shows_what_was_delivered(
    bank: ReadBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W01, W13: the log has a change and a deletion that the replica does not show. The capture continues."""
    monkeypatch.setattr(replica_wait, "REPLAY_WAIT_S", 0.5)
    reasons = backfill_while_replication_stands_still(bank, expects="wait")
    assert any("lags: it has replayed" in reason for reason in reasons), reasons
    assert first_rows(bank) == ["after"]
    bank.assert_log_equals_source()


def test_fences_alone_refuse_a_chunk_of_an_earlier_place(bank: ReadBank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaWait, "until_replayed", lambda *_: None)
    reasons = backfill_while_replication_stands_still(bank, expects="wait")
    refused = ("not visible yet", "lags: it has replayed")
    assert any(text in reason for reason in reasons for text in refused), reasons
    assert first_rows(bank) == ["after"]
    bank.assert_log_equals_source()


def test_trap_is_real_without_wait_and_fences(bank: ReadBank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without both: the old value is in the log again, and the deleted row. The recipe shows the fault."""

    def none_of(_: GtidVisibility, xids: Uint64s) -> Uint64s:
        return xids[:0]

    monkeypatch.setattr(ReplicaWait, "until_replayed", lambda *_: None)
    monkeypatch.setattr(GtidVisibility, "hidden", none_of)
    monkeypatch.setattr(BackfillReplica, "_check_promise", lambda *_: None)
    backfill_while_replication_stands_still(bank, expects="nothing")
    assert first_rows(bank) == ["owner 1", "owner 2"]


STATEMENTS = (
    "ALTER TABLE entries ADD COLUMN place varchar(20) DEFAULT 'here'",
    "ALTER TABLE entries MODIFY amount decimal(16,4) NOT NULL",
    "ALTER TABLE accounts RENAME COLUMN owner TO holder",
    "TRUNCATE TABLE holders",
    "ALTER TABLE entries DROP COLUMN note",
)


def has_read(bank: ReadBank, rows: int) -> Callable[[], bool]:
    return lambda: bank.reader.exists() and bank.read_rows() >= rows


def test_statements_that_alter_tables_while_rows_are_read(bank: ReadBank) -> None:
    """What a chunk's columns mean is decided by its place in the log, not by what the primary has at the time."""
    bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
    with bank.capturing():
        for number, statement in enumerate(STATEMENTS):
            bank.wait_until(has_read(bank, 200 * number), "a part of the backfill")
            bank.database.execute(statement)
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the backfill")
    bank.assert_log_equals_source()


def test_replica_that_is_killed_and_started_again(bank: ReadBank) -> None:
    """Its chunks are read again; no attempt of the capture ends."""
    bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
    changing = Changing(bank, bank.configure)
    with changing.capturing() as capture:
        bank.wait_until(lambda: bank.reader.exists() and bank.read_rows() > 500, "a part of the backfill")
        bank.replica.kill()
        bank.write(seed=1, transactions=20)
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_passed(fence), "the capture to continue")
        bank.replica.start()
        changing.catch_up()
        assert capture.counts()["attempts"] == 1
    bank.assert_log_equals_source()


def test_promoted_replica_is_not_read_from(bank: ReadBank) -> None:
    """It has rows that the primary does not have. The remedy is followed: rows are read at the primary."""
    bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
    changing = Changing(bank, bank.configure)
    with changing.capturing() as capture:
        bank.wait_until(lambda: bank.reader.exists() and bank.read_rows() > 500, "a part of the backfill")
        replication.promote(bank.replica)
        MySQLDatabase(bank.replica, NAME).execute("UPDATE accounts SET owner = 'split'")
        bank.write(seed=2, transactions=20)
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_passed(fence), "the capture to continue")
        bank.wait_until(lambda: "it was promoted" in str(given_up(changing)), "the chunk to be abandoned")
        assert "it was promoted" in errors_of_doctor(bank)
        bank.address = None
        bank.configure()
        changing.reload(capture)
        changing.catch_up()
    assert "split" not in repr(bank.logged_rows("accounts"))
    bank.assert_log_equals_source()


def test_replica_with_errant_transactions_is_not_read_from(bank: ReadBank) -> None:
    """A transaction that only the replica has: its rows are not the source's. Refused at the first start, too."""
    replication.wait_until_caught_up(bank.replica, bank.database.server)
    MySQLDatabase(bank.replica, NAME).execute("UPDATE accounts SET owner = 'errant' WHERE id = 3")
    with pytest.raises(ConfigurationError, match="it has transactions that") as refused:
        bank.capture_to_its_end()
    assert "set source.backfill.url to a running replica" in (refused.value.remedy or "")
    assert "it has transactions that" in errors_of_doctor(bank)


def test_replica_with_a_filter_and_the_primary_itself_are_refused(bank: ReadBank, own_mysql: MySQLServer) -> None:
    replication.stop(bank.replica)
    if own_mysql.flavor == "mysql":
        bank.replica.execute("CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = (read_bank.entries)")
    else:
        bank.replica.execute("SET GLOBAL replicate_ignore_table = 'read_bank.entries'")
    replication.start(bank.replica)
    with pytest.raises(ConfigurationError, match="Replicate_Ignore_Table is set"):
        bank.capture_to_its_end()
    assert "Replicate_Ignore_Table is set" in errors_of_doctor(bank)
    bank.address = own_mysql.url()
    bank.configure()
    with pytest.raises(ConfigurationError, match="replicates from no server"):
        bank.capture_to_its_end()


def errors_of_doctor(bank: ReadBank) -> str:
    found = [f for f in wiring.doctor(load(bank.config_path)) if f.level == "error"]
    assert all(f.subject == "source.backfill.url" for f in found), found
    return " ".join(f"{f.text}: {f.remedy}" for f in found)


def test_rights_that_reading_from_a_replica_needs_are_named(bank: ReadBank) -> None:
    """Each GRANT that a message names is run to the letter, until the tables are read."""
    rights = "REPLICATION SLAVE, BINLOG MONITOR" if bank.replica.flavor == "mariadb" else "REPLICATION SLAVE"
    bank.database.execute(
        "CREATE USER cdc@'127.0.0.1'",
        f"GRANT SELECT ON {NAME}.* TO cdc@'127.0.0.1'",
        "GRANT CREATE, SELECT, INSERT, UPDATE ON cdcflow.* TO cdc@'127.0.0.1'",
        f"GRANT {rights} ON *.* TO cdc@'127.0.0.1'",
        *(() if bank.replica.flavor == "mariadb" else ("GRANT REPLICATION CLIENT ON *.* TO cdc@'127.0.0.1'",)),
    )
    replication.wait_until_caught_up(bank.replica, bank.database.server)
    bank.address = bank.replica.url("cdc")
    bank.configure(url=bank.database.server.url("cdc"))
    for _ in range(3):
        errors = [f for f in wiring.doctor(load(bank.config_path)) if f.level == "error"]
        for found in errors:
            bank.database.execute((found.remedy or "").removeprefix("run "))
        replication.wait_until_caught_up(bank.replica, bank.database.server)
        if not errors:
            break
    changing = Changing(bank, lambda **source: bank.configure(url=bank.database.server.url("cdc"), **source))
    with changing.capturing():
        bank.wait_until(bank.reader.exists, "the log")
        run: set[str] = set()

        def is_read() -> bool:
            for event, fields in list(changing.events):
                reason = str(fields.get("reason"))
                if event == "chunk given up" and "run GRANT " in reason and reason not in run:
                    run.add(reason)
                    bank.database.execute("GRANT " + reason.partition("run GRANT ")[2].split("\n")[0])
            return bank.has_reached("")

        bank.wait_until(is_read, "the backfill")
    bank.assert_log_equals_source()


@pytest.mark.parametrize("seed", range(4))
def test_random_load_with_stopped_killed_and_late_replicas(bank: ReadBank, seed: int) -> None:
    """In the end both comparisons find log and primary equal."""
    dice = random.Random(seed)
    bank.configure(backfill={"chunk_rows_max": 100, "chunk_time_target_ms": 5})
    daemon = bank.daemon()
    bank.wait_until(bank.reader.exists, "the log", daemon)
    bank.start_writing(seed=seed)
    for _ in range(10):
        match dice.choice(["stop", "kill replica", "kill daemon", "long", "alter"]):
            case "stop":
                replication.stop(bank.replica)
                time.sleep(dice.random())
                replication.start(bank.replica)
            case "kill replica":
                bank.replica.kill()
                bank.replica.start()
            case "kill daemon":
                daemon.kill()
                daemon.wait()
                daemon = bank.daemon()
            case "long":
                with bank.database.session(autocommit=False) as long, long.cursor() as cursor:
                    cursor.execute("UPDATE accounts SET owner = 'long' WHERE id = %s", (dice.randint(1, 6000),))
                    time.sleep(dice.random())
                    long.commit()
            case "alter":
                bank.database.execute("ALTER TABLE entries ENGINE = InnoDB")
        time.sleep(dice.random())
    bank.wait_until(lambda: bank.has_reached(""), "the backfill under load", daemon)
    bank.stop_writing()
    bank.assert_verified(daemon)
    bank.catch_up_and_stop(daemon)
    bank.assert_log_equals_source()

"""Nothing of an erased person can be read in any file, as soon as `cdcflow erase` returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import PostgresServer
from tests.support.privacy.person_bank import MySQLPersonBank, PersonBank
from tests.support.privacy.private_bank import SECRETS
from typer.testing import CliRunner

from cdcflow.cli.app import app

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)


@pytest.fixture
def bank(private_server: PostgresServer, tmp_path: Path) -> Iterator[PersonBank]:
    database = private_server.create_database(f"persons_{next(_numbers)}")
    made = PersonBank(database, tmp_path)
    yield made
    made.stop_writing()
    database.drop()


@pytest.fixture
def mysql_bank(mysql_database: MySQLDatabase, tmp_path: Path) -> Iterator[MySQLPersonBank]:
    made = MySQLPersonBank(mysql_database, tmp_path)
    yield made
    made.stop_writing()


def erase(bank: PersonBank | MySQLPersonBank, person: int) -> None:
    words = ["erase", f"{bank.schema}.users", str(person), "--yes", "--config", str(bank.config_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    bank.erased |= {person}
    assert bank.readable_places([person]) == []


def erased_while_running(bank: PersonBank | MySQLPersonBank, point: str, count: str) -> None:
    bank.start_writing(seed=sum(point.encode()))
    bank.assert_killed(bank.daemon(point, count), live=True)
    daemon = bank.daemon()
    bank.wait_until(lambda: bank.has_reached(""), "the backfill", daemon)
    keys = bank.log / "person-keys"
    before = keys.read_text()
    assert bank.readable_places([]) == []
    assert bank.readable_places([17])
    erase(bank, 17)
    gone = {line for line in before.splitlines() if line not in keys.read_text().splitlines()}
    assert len(gone) == 1
    wrapped = gone.pop().split()[2]
    assert not [p for p in bank.folder.rglob("*") if p.is_file() and wrapped.encode() in p.read_bytes()]
    seen = bank.transactions
    bank.wait_until(lambda: bank.transactions > seen + 60, "the writer to continue", daemon)
    bank.stop_writing()
    daemon.kill()
    daemon.wait()
    again = bank.daemon()
    erase(bank, 18)
    bank.write(seed=3, transactions=20)
    bank.catch_up_and_stop(again)
    assert bank.readable_places([17, 18]) == []
    bank.assert_log_equals_source()


@pytest.mark.postgres
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), [("after:append", "6"), ("before:fsync", "40"), ("after:chunk read", "4")])
def test_no_file_has_anything_readable_of_an_erased_person(bank: PersonBank, point: str, count: str) -> None:
    """Rows pass from person to person while their wide values are not sent, and a daemon that had the
    keys in memory."""
    erased_while_running(bank, point, count)


@pytest.mark.long
@pytest.mark.mysql
@pytest.mark.spread(1)
@pytest.mark.parametrize(("point", "count"), [("after:append", "6"), ("after:release", "4")])
def test_no_file_on_mysql_has_anything_readable_of_an_erased_person(
    mysql_bank: MySQLPersonBank, point: str, count: str
) -> None:
    """Updates come without the person, or without the address."""
    erased_while_running(mysql_bank, point, count)

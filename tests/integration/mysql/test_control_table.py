"""The control table on MySQL and MariaDB: made by the remedy of the error, used by users with no more rights than it
grants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from tests.servers.mysql import MySQLDatabase

from cdcflow.config import MySQL
from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql.control import control_table

USERS = ("control_cdc", "control_ann")


@pytest.fixture
def as_users(mysql_database: MySQLDatabase) -> Iterator[Callable[[str], str]]:
    """URLs of two accounts without any right: one for the capture, and one for sending commands."""
    server = mysql_database.server
    server.execute(*(f"CREATE USER {user}@'127.0.0.1'" for user in USERS))
    yield server.url
    server.execute(*(f"DROP USER {user}@'127.0.0.1'" for user in USERS), "DROP DATABASE IF EXISTS ops")


@pytest.mark.spread(1)
def test_remedy_creates_the_control_table_and_commands_are_answered(
    mysql_database: MySQLDatabase, as_users: Callable[[str], str]
) -> None:
    """To the letter; and the remedy's grants are enough, both for reading commands and for sending them."""
    server = mysql_database.server
    settings = {"kind": server.flavor, "tls": {"mode": "off"}, "tables": ["a.b"], "control_table": "ops.orders%"}
    table = control_table(MySQL.model_validate({**settings, "url": as_users("control_cdc")}), lambda: None)
    with pytest.raises(ConfigurationError, match=r"control table ops\.orders%") as missing:
        table.check()
    remedy = str(missing.value.remedy).removeprefix("run ")
    server.execute(*remedy.split("; "))
    table.check()
    server.execute("GRANT SELECT, INSERT ON ops.`orders%` TO control_ann@'127.0.0.1'")
    with contextlib.closing(server.connect("ops", user="control_ann")) as ann, ann.cursor() as cursor:
        cursor.execute("INSERT INTO ops.`orders%` (operation, arguments) VALUES ('stop', NULL), ('pause', '{}')")
        first, second = table.waiting()
        assert (first.operation, first.arguments) == ("stop", None)
        assert first.asked_by.startswith("control_ann@")
        assert (second.operation, second.arguments) == ("pause", "{}")
        assert table.claim(first.number)
        assert not table.claim(first.number), "once"
        assert table.claimed() == [first.number]
        table.answer(first.number, "done", "yes")
        cursor.execute("SELECT state, answer, answered_at >= asked_at FROM ops.`orders%` ORDER BY id")
        assert list(cursor.fetchall()) == [("done", "yes", 1), ("new", None, None)]
    server.execute("DROP TABLE ops.`orders%`")
    with pytest.raises(ConfigurationError, match=r"cannot be used|does not exist"):
        table.check()
    table.close()

"""The control table on PostgreSQL: created by the remedy of the error, used with no more rights than it grants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psycopg
import pytest
from tests.servers.postgres import Database

from cdcflow.config import Postgres
from cdcflow.errors import ConfigurationError, RightMissing
from cdcflow.sources.postgres.control import control_table

pytestmark = pytest.mark.postgres


@pytest.fixture
def as_users(database: Database) -> Iterator[Callable[[str], str]]:
    """URLs of two roles without any right: one for the capture, and one for sending commands."""
    for role in ("control_cdc", "control_ann"):
        database.execute(f"CREATE ROLE {role} LOGIN")
    yield database.url_as
    for role in ("control_cdc", "control_ann"):
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_remedy_creates_the_control_table_and_commands_are_answered(
    database: Database, as_users: Callable[[str], str]
) -> None:
    """To the letter; and the remedy's grants are enough, both for reading commands and for sending them."""
    url = as_users("control_cdc")
    table = control_table(Postgres(kind="postgres", url=url, control_table="ops.orders%"), lambda: None)
    with pytest.raises(ConfigurationError, match="does not exist, or lacks a column") as missing:
        table.check()
    database.execute(str(missing.value.remedy).removeprefix("run "))
    table.check()
    database.execute('GRANT USAGE ON SCHEMA ops TO control_ann; GRANT SELECT, INSERT ON ops."orders%" TO control_ann')
    with contextlib.closing(psycopg.connect(as_users("control_ann"), autocommit=True)) as ann:
        ann.execute("""INSERT INTO ops."orders%" (operation, arguments) VALUES ('stop', NULL), ('pause', '{}')""")
        first, second = table.waiting()
        assert (first.operation, first.arguments, first.asked_by) == ("stop", None, "control_ann")
        assert (second.operation, second.arguments) == ("pause", "{}")
        assert table.claim(first.number)
        assert not table.claim(first.number), "once"
        assert table.claimed() == [first.number]
        table.answer(first.number, "done", "yes")
        answers = ann.execute('SELECT state, answer, answered_at >= asked_at FROM ops."orders%" ORDER BY id').fetchall()
        assert answers == [("done", "yes", True), ("new", None, None)]
    database.execute('REVOKE UPDATE (state) ON ops."orders%" FROM control_cdc')
    with pytest.raises(RightMissing, match="cannot be used") as refused:
        table.check()
    database.execute(str(refused.value.remedy).removeprefix("run "))
    table.check()
    table.close()

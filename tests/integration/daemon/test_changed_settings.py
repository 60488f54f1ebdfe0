"""Settings that change while a daemon runs on PostgreSQL, and while none does."""

from __future__ import annotations

import pytest
from tests.support.daemon.bank import Bank
from tests.support.daemon.changed_settings import (
    Changing,
    Odd,
    failed_reading_is_tried_again,
    killed_while_a_table_is_taken_in,
    left_out_and_taken_in_again,
    policy_changed,
)

pytestmark = pytest.mark.postgres

ODD = Odd(
    null={"special_values": "null"}, other={"special_values": "clamp"}, text={"columns": {"public.odd.due": "text"}}
)


@pytest.fixture
def changing(bank: Bank) -> Changing:
    return Changing(bank, bank.configure)


def test_table_is_excluded_and_included_again_while_running(changing: Changing) -> None:
    """O05: no log has its changes while it was excluded, so it is read again; the publication follows."""
    left_out_and_taken_in_again(changing, "entries")


@pytest.mark.spread(1)
@pytest.mark.parametrize("point", [("after:plan", "1"), ("before:release", "2")])
def test_daemon_killed_while_a_table_is_included_loses_and_doubles_nothing(
    changing: Changing, point: tuple[str, str]
) -> None:
    """The command to read it is in the same cut as the list that contains it."""
    killed_while_a_table_is_taken_in(changing, "entries", *point)


def test_rows_that_another_policy_converts_differently_are_read_again(bank: Bank, changing: Changing) -> None:
    """Infinity as NULL stays NULL in the log until the row is read again; nothing is read again without a reason."""
    bank.database.execute("CREATE TABLE odd (id int PRIMARY KEY, due timestamptz)")
    bank.database.execute("INSERT INTO odd VALUES (1, 'infinity'), (2, '2020-01-01')")
    policy_changed(changing, ODD)


def test_settings_that_the_server_refuses_are_abandoned_while_running(bank: Bank, changing: Changing) -> None:
    """A table without a key, named by a typing mistake: the capture continues as before, and misses no change."""
    changing.use(*bank.tables)
    with changing.capturing() as capture:
        changing.catch_up()
        bank.database.execute("CREATE TABLE bare (v int)")
        changing.use(*bank.tables, "bare")
        assert changing.refusal(capture).startswith("cannot capture: public.bare has no primary key")
        bank.write(seed=13, transactions=20)
        changing.catch_up()
    bank.assert_log_equals_source()


@pytest.mark.parametrize(
    ("value", "mended", "running"),
    [
        ("int[] DEFAULT '{{1,2},{3,4}}'", {"columns": {"public.odd.due": "text"}}, False),
        ("date DEFAULT 'infinity'", {"columns": {"public.odd.due": "clamp"}}, True),
    ],
    ids=["array", "date"],
)
def test_a_table_that_failed_is_read_with_the_setting_that_its_error_names(
    bank: Bank, changing: Changing, value: str, mended: dict[str, object], running: bool
) -> None:
    """Otherwise the remedy, the plan and `apply` would all promise a reading that only `cdcflow backfill` starts."""
    bank.database.execute(f"CREATE TABLE odd (id int PRIMARY KEY, due {value}); INSERT INTO odd VALUES (1), (2)")
    failed_reading_is_tried_again(changing, mended, running=running)

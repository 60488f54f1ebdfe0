"""Settings that change while a daemon runs on MySQL or MariaDB, and while none does."""

from __future__ import annotations

import pytest
from tests.support.daemon.changed_settings import (
    Changing,
    Odd,
    failed_reading_is_tried_again,
    killed_while_a_table_is_taken_in,
    left_out_and_taken_in_again,
    policy_changed,
)
from tests.support.daemon.mysql_bank import MySQLBank

pytestmark = [pytest.mark.mysql, pytest.mark.spread(1)]

ODD = Odd(null={"zero_dates": "null"}, other=None, text={"zero_dates": "text"})


@pytest.fixture
def changing(bank: MySQLBank) -> Changing:
    return Changing(bank, bank.configure)


def test_table_is_excluded_and_included_again_while_running(changing: Changing) -> None:
    """O05: the binary log has the changes in between, but the position is past it: the table is read again."""
    left_out_and_taken_in_again(changing, "entries")


@pytest.mark.long
def test_daemon_killed_while_a_table_is_included_loses_and_doubles_nothing(changing: Changing) -> None:
    """The order to read it is in the same cut as the list that has it."""
    killed_while_a_table_is_taken_in(changing, "entries", "after:plan", "1")


def test_rows_that_another_policy_converts_differently_are_read_again(bank: MySQLBank, changing: Changing) -> None:
    """A zero date as NULL stays NULL in the log until the row is read again; nothing is read again without a reason."""
    bank.database.execute(
        "SET SESSION sql_mode = ''",
        "CREATE TABLE odd (id int PRIMARY KEY, due date)",
        "INSERT INTO odd VALUES (1, '0000-00-00'), (2, '2020-01-01')",
    )
    policy_changed(changing, ODD)


def test_a_table_that_failed_is_read_with_the_setting_that_its_error_names(bank: MySQLBank, changing: Changing) -> None:
    """Otherwise the remedy, the plan and `apply` would all promise a reading that only `cdcflow backfill` starts."""
    bank.database.execute(
        "SET SESSION sql_mode = ''",
        "CREATE TABLE odd (id int PRIMARY KEY, due date)",
        "INSERT INTO odd VALUES (1, '0000-00-00'), (2, '2020-01-01')",
    )
    column = f"{bank.schema}.odd.due"
    failed_reading_is_tried_again(changing, {"columns": {column: "null"}}, running=True)

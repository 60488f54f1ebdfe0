"""One table whose changes cannot leave the source never stops the others: under load, over kills around its failure,
while it is read and while the capture lags. Nothing shows it as current until the printed remedy was followed."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import PostgresServer
from tests.support.polling import PATIENCE_S
from tests.support.privacy.canaries import CANARY, canaries_in
from tests.support.privacy.failing_bank import (
    EXCHANGED_NAMES,
    RENAMED_NAME,
    RENAMED_POLICY,
    VALUE,
    FailingBank,
    FailingMySQLBank,
    Fault,
    use_rules,
)

from cdcflow import local, wiring
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.config import load
from cdcflow.daemon.merge_process import prepare_merge
from cdcflow.model.table import TableId

_numbers = itertools.count(1)
AnyBank = FailingBank | FailingMySQLBank


@pytest.fixture
def failing_bank(private_server: PostgresServer, tmp_path: Path) -> Iterator[FailingBank]:
    database = private_server.create_database(f"failing_{next(_numbers)}")
    made = FailingBank(database, tmp_path)
    yield made
    made.stop_writing()
    database.drop()


@pytest.fixture
def failing_mysql_bank(mysql_database: MySQLDatabase, tmp_path: Path) -> Iterator[FailingMySQLBank]:
    made = FailingMySQLBank(mysql_database, tmp_path)
    yield made
    made.stop_writing()


@pytest.mark.postgres
@pytest.mark.long
def test_other_tables_of_postgres_continue_over_kills(failing_bank: FailingBank) -> None:
    failed_over_kills_and_mended(failing_bank, VALUE)


@pytest.mark.mysql
@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(VALUE, id="value"),
        pytest.param(RENAMED_POLICY, id="policy"),
        pytest.param(RENAMED_NAME, id="name"),
        pytest.param(EXCHANGED_NAMES, id="exchange"),
    ],
)
def test_other_tables_of_mysql_continue_over_kills(failing_mysql_bank: FailingMySQLBank, fault: Fault) -> None:
    failed_over_kills_and_mended(failing_mysql_bank, fault)


@pytest.mark.postgres
@pytest.mark.long
def test_table_of_postgres_that_fails_while_it_is_read_or_after_a_stop(failing_bank: FailingBank) -> None:
    failed_while_read_and_after_a_stop(failing_bank, VALUE)


@pytest.mark.mysql
@pytest.mark.long
@pytest.mark.parametrize("fault", [pytest.param(VALUE, id="value"), pytest.param(RENAMED_POLICY, id="policy")])
def test_table_of_mysql_that_fails_while_it_is_read_or_after_a_stop(
    failing_mysql_bank: FailingMySQLBank, fault: Fault
) -> None:
    failed_while_read_and_after_a_stop(failing_mysql_bank, fault)


@pytest.mark.postgres
@pytest.mark.long
@pytest.mark.parametrize("statements", ["RENAME COLUMN note TO remark", "exchange"])
def test_expressions_of_postgres_follow_columns_by_their_numbers(failing_bank: FailingBank, statements: str) -> None:
    """While the daemon runs and while it is stopped: the table does not fail, and no other column decides."""
    bank = failing_bank
    bank.begin(EXCHANGED_NAMES)
    use_rules(bank, {"where": "char_length(note) < 3"})  # no ssn is as short
    bank.start_writing(seed=5)
    daemon = bank.daemon()
    is_read(bank, daemon)
    renames = ["note TO x", "ssn TO note", "x TO ssn"] if statements == "exchange" else ["note TO remark"]
    for rename in renames:
        bank.database.execute(f"ALTER TABLE people RENAME COLUMN {rename}")
    others_continue(bank, daemon)
    for _ in range(2):
        bank.catch_up_and_stop(daemon)
        daemon = bank.daemon()
        others_continue(bank, daemon)
    bank.stop_writing()
    bank.catch_up_and_stop(daemon)
    name = "ssn" if statements == "exchange" else "remark"
    assert known(bank).generation == 1
    expected = [row for row in bank.source_rows("people") if len(str(row[bank.columns("people").index(name)])) < 3]
    assert merged_rows(bank) == expected != []


@pytest.mark.mysql
@pytest.mark.long
@pytest.mark.parametrize("when", ["known", "lost", "never"])
def test_exchanged_names_of_mysql_after_lost_history(failing_mysql_bank: FailingMySQLBank, when: str) -> None:
    """The statement is in the log that cdcflow has read, in the part that is lost, or was never executed. A table whose
    rows would leave by the wrong column is not read again with the others."""
    bank, people = failing_mysql_bank, f"{failing_mysql_bank.schema}.people"
    bank.begin(EXCHANGED_NAMES)
    use_rules(bank, {**EXCHANGED_NAMES.rules, "columns": {"ssn": {"rename": "secret"}}})
    with bank.capturing():
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the backfill")
        if when == "known":
            bank.break_people()
            bank.wait_until(lambda: known(bank).lacks_changes, "the table to fail")
    if when == "lost":
        bank.break_people()
    generation = known(bank).generation
    for lost in (True, False):
        bank.database.execute(f"INSERT INTO people VALUES ({2 - lost}00000, 'a', 'b')")
        fence = bank.fence()
        with bank.capturing(accept_history_loss=lost):
            bank.wait_until(partial(bank.has_passed, fence), "the log to continue")
            bank.wait_until(lambda: not others_to_read(bank) and known(bank).state in ("done", "failed"), "backfills")
    assert known(bank).state == ("done" if when == "never" else "failed")
    assert known(bank).generation == generation + (when != "known")
    if when == "never":
        return
    use_rules(bank, {**EXCHANGED_NAMES.mended, "columns": {"note": {"rename": "secret"}}})
    with bank.capturing(backfill=(people,)):
        bank.wait_until(lambda: bank.has_reached(bank.fence()), "the table to be read")
    merge(bank)
    rows = local.read_cut(bank.folder / "warehouse")[people].select(["id", "secret", "ssn"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == bank.database.execute(
        "SELECT id, note, ssn FROM people ORDER BY id"
    )


# ── what they have in common ────────────────────────────────────────────────────────────────────────────────


def failed_over_kills_and_mended(bank: AnyBank, fault: Fault) -> None:
    bank.begin(fault)
    use_rules(bank, fault.rules)
    bank.start_writing(seed=3)
    first = bank.daemon("before:changes refused", "1", "start")
    is_read(bank, first)
    bank.break_people()
    bank.assert_killed(first, live=False)
    for point in (
        ("after:changes refused", "1", "start"),
        ("after:append", "3"),
        ("before:sync", "4"),
    ):
        bank.assert_killed(bank.daemon(*point), live=False)
    daemon = bank.daemon()
    bank.wait_until(lambda: known(bank).lacks_changes, "the table to fail", daemon)
    others_continue(bank, daemon)
    bank.stop_writing()
    assert_hidden(bank, daemon)
    bank.start_writing(seed=6)
    daemon.kill()
    daemon.wait()
    mended_by_the_remedy(bank, fault)


def failed_while_read_and_after_a_stop(bank: AnyBank, fault: Fault) -> None:
    """The fault is in the log before the capture arrives there, and its backfill is not done."""
    bank.begin(fault)
    use_rules(bank, fault.rules)
    bank.configure(backfill={"chunk_rows_max": 50, "rows_per_second_max": 300, "chunk_time_target_ms": 20})
    bank.start_writing(seed=4)
    killed = bank.daemon("after:chunk read", "3", "start")
    bank.assert_killed(killed, live=False)
    assert known(bank).state in ("waiting", "reading")
    bank.break_people()
    before = bank.transactions
    bank.wait_until(lambda: bank.transactions > before + 100, "a backlog")
    daemon = bank.daemon()
    bank.wait_until(lambda: known(bank).state == "failed", "the table to fail", daemon)
    bank.wait_until(lambda: known(bank).lacks_changes or fault is VALUE, "its changes to be refused", daemon)
    daemon.kill()
    daemon.wait()
    mended_by_the_remedy(bank, fault)


def mended_by_the_remedy(bank: AnyBank, fault: Fault) -> None:
    """Change the settings, and run the commands that the reason names, as an operator would."""
    with (bank.folder / "daemon.out").open("ab") as output:
        command = [sys.executable, "-m", "cdcflow.cli", "run"]
        daemon = subprocess.Popen(command, cwd=bank.folder, stdout=output, stderr=output)
    try:
        others_continue(bank, daemon)
        reason = str(known(bank).reason)
        assert CANARY not in reason
        commands = [shlex.split(found) for found in re.findall("`cdcflow ([^`]*)`", reason)]
        assert [name for name, *_ in commands] == ["apply", "backfill"]
        use_rules(bank, fault.mended)
        bank.wait_until(lambda: cdcflow(bank, "status").returncode == 0, "the control socket", daemon)
        for name, *words in commands:
            done = cdcflow(bank, name, *words, *(["--yes"] if name == "apply" else []))
            assert done.returncode == 0, done.stdout + done.stderr
        bank.stop_writing()
        bank.assert_verified(daemon)
        bank.catch_up_and_stop(daemon)
    finally:
        daemon.kill()
        daemon.wait()
    bank.assert_log_equals_source()
    assert merged_rows(bank) == bank.source_rows("people")
    if fault.hidden:
        assert canaries_in(bank.log) == []


def is_read(bank: AnyBank, daemon: subprocess.Popen[bytes]) -> None:
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_reached(fence), "the backfill", daemon)


def others_continue(bank: AnyBank, daemon: subprocess.Popen[bytes]) -> None:
    """The position passes what is committed now, so the others are captured and the source is acknowledged."""
    before = bank.transactions
    bank.wait_until(lambda: bank.transactions > before + 30, "the writer", daemon)
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_passed(fence), "the other tables to continue", daemon)
    tables = Progress.from_json(bank.reader.newest_checkpoint().progress).tables
    assert not [table for table, found in tables.items() if found.state == "failed" and table.name != "people"]


def assert_hidden(bank: AnyBank, daemon: subprocess.Popen[bytes]) -> None:
    people = f"{bank.schema}.people"
    fence = bank.fence()
    bank.wait_until(lambda: bank.has_passed(fence), "the log to pass the fence", daemon)
    bank.wait_until(lambda: not others_to_read(bank), "rows of others that came without all of their columns", daemon)
    newest = bank.reader.newest_checkpoint().next_offset - 1
    bank.wait_until(lambda: bank.sealed_offset() >= newest, f"offset {newest} to be sealed", daemon)
    merge(bank)
    warehouse = bank.folder / "warehouse"
    cut, live = local.read_cut(warehouse), local.read_live(bank.log, warehouse)
    assert people not in cut
    assert people not in live
    assert {f"{bank.schema}.accounts", f"{bank.schema}.entries"} <= cut.keys() & live.keys()
    assert local.read_live(bank.log, warehouse, incomplete=True).incomplete[people] == "failed"
    verdicts = {table.table: table.verdict for table in bank.verified().tables}
    assert verdicts == {name: "not compared" if name == people else "equal" for name in verdicts}
    status = json.loads(cdcflow(bank, "status", "--json").stdout)["tables"][people]
    assert status["state"] == "failed"
    assert CANARY not in json.dumps(status)


def others_to_read(bank: AnyBank) -> list[str]:
    tables = Progress.from_json(bank.reader.newest_checkpoint().progress).tables
    return [str(table) for table, found in tables.items() if table.name != "people" and found.state != "done"]


def merged_rows(bank: AnyBank) -> list[tuple[object, ...]]:
    """The rows of `people` as a table has them, which follows its columns' names."""
    merge(bank)
    rows = local.read_cut(bank.folder / "warehouse")[f"{bank.schema}.people"].to_pylist()
    return sorted((tuple(row[c] for c in bank.columns("people")) for row in rows), key=repr)


def merge(bank: AnyBank) -> None:
    prepare_merge(load(bank.config_path), lambda text: None, lambda progress: None)()


def known(bank: AnyBank) -> TableProgress:
    checkpoint = wiring.log_reader(load(bank.config_path)).newest_checkpoint()
    return Progress.from_json(checkpoint.progress).tables[TableId(bank.schema, "people")]


def cdcflow(bank: AnyBank, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdcflow.cli", *words]
    return subprocess.run(command, cwd=bank.folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

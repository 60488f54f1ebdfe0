"""A source never keeps more log than the settings say, and the gap that follows is repaired without a person."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.polling import PATIENCE_S, wait_until
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.cli.guard import procedure
from cdcflow.daemon.interfaces.control_socket import ask

BUDGET = 24 << 20
SEGMENT = 16 << 20
ROWS = 500
KILLED_DAEMON = Path(__file__).parents[2] / "support" / "kill" / "budgeted_daemon.py"
CHANGED = (
    "UPDATE items SET name = 'unseen' WHERE id IN (5, 6)",
    "DELETE FROM items WHERE id IN (1, 2, 3)",
    f"INSERT INTO items VALUES ({ROWS}, 'unseen'), ({ROWS + 1}, 'unseen')",
    "UPDATE items SET id = 9000 WHERE id = 7",
    "INSERT INTO notes VALUES ('c')",
)
"""What no reader sees before the log that has it is released."""

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as made:
        yield made


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    made = server.create_database("budgets")
    yield made
    made.drop()


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Iterator[ComparedShop]:
    """A shop with a budget, whose tables are read, and whose daemon runs."""
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        shop.settings["source"] |= {"log_budget": BUDGET, "log_budget_then": "release", "slot": "budgeted"}
        shop.write()
        rows = ", ".join(f"({n}, 'name {n}')" for n in range(ROWS))
        shop.execute("CREATE TABLE items (id int PRIMARY KEY, name varchar(40))", f"INSERT INTO items VALUES {rows}")
        shop.execute("CREATE TABLE notes (note varchar(40))", "INSERT INTO notes VALUES ('a'), ('b')")
        shop.execute("ALTER TABLE notes REPLICA IDENTITY FULL")
        shop.start("items", "notes")
        yield shop


def fill(shop: ComparedShop, size: int) -> None:
    """Have the server write this much log, which has no rows."""
    for _ in range(size >> 20):
        shop.execute("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1 << 20))")


def kept(shop: ComparedShop) -> int | None:
    """How much log the server keeps for the slot; None without a slot."""
    found = shop.execute(
        "SELECT pg_current_wal_lsn() - restart_lsn FROM pg_replication_slots WHERE slot_name = 'budgeted'"
    )
    return int(found[0][0]) if found else None


def is_repaired(status: dict[str, Any]) -> bool:
    """After a gap every table was compared, or read again."""
    items, notes = (status["tables"][f"public.{name}"] for name in ("items", "notes"))
    is_proven = items["generation"] > 1 or (items.get("gap") is not None and items["gap"]["proven"] is not None)
    return is_proven and notes["generation"] > 1 and items["state"] == notes["state"] == "done"


def assert_repaired(shop: ComparedShop) -> None:
    """The tables become equal to the source, deletes included, and no person does anything."""
    shop.wait_until(is_repaired, "every table to be compared or read again")
    shop.assert_copies_equal_source("items", ["id", "name"])
    shop.assert_copies_equal_source("notes", ["note"])
    shop.verify("--against", "log", code=0)
    (gap,) = json.loads(shop.said("log", "gaps", "--json"))
    assert gap["before"] < gap["after"], "one gap, whatever was killed in between"


def use_budget_up(shop: ComparedShop) -> None:
    shop.execute(*CHANGED)
    fill(shop, BUDGET + (4 << 20))


@pytest.mark.long
def test_budget_is_held_by_a_daemon_that_does_not_read(shop: ComparedShop) -> None:
    """P37: a daemon that runs and reads nothing must not fill the source's disk."""
    ask(shop.folder / "log", {"op": "pause-capture"})
    shop.wait_until(lambda status: status["state"] == "paused", "the capture to pause")
    use_budget_up(shop)
    wait_until(lambda: kept(shop) is None, "the slot to be released", more=shop.output.read_text)
    shop.wait_until(lambda status: "released_at" in status["log_budget"], "the release in the status")
    assert "released at" in " ".join(shop.said("status", code=None).split())
    ask(shop.folder / "log", {"op": "resume-capture"})
    assert_repaired(shop)


def guard(shop: ComparedShop, *options: str, code: int = 0) -> str:
    """The output of `cdcflow guard`, which must not need the log."""
    command = [sys.executable, "-m", "cdcflow.cli", "guard", *options, "--config", str(shop.file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/", check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def by_procedure(shop: ComparedShop) -> str:
    """What pg_cron would run."""
    shop.execute(procedure())
    shop.execute(f"CALL cdcflow.guard('budgeted', {BUDGET})")
    return str(shop.execute("SELECT noted_by FROM cdcflow.released_slots"))


@pytest.mark.parametrize(
    "hold",
    [
        pytest.param(lambda shop: guard(shop, "--once"), marks=pytest.mark.long, id="command"),
        pytest.param(by_procedure, id="procedure"),
    ],
)
def test_budget_is_held_while_no_daemon_runs(shop: ComparedShop, hold: Callable[[ComparedShop], str]) -> None:
    """P37: the outage that fills a disk is the one in which the daemon is gone, too."""
    shop.kill()
    hold(shop)
    assert kept(shop) is not None, "below the budget nothing is dropped"
    use_budget_up(shop)
    assert "guard" in hold(shop)
    assert kept(shop) is None
    hold(shop)  # once more: nothing is left to do
    shop.start("items", "notes")
    assert_repaired(shop)
    shop.stop()
    shop.start("items", "notes")  # the used note is no new release
    shop.wait_until(is_repaired, "the tables to stay unchanged")
    assert "changes not captured" not in shop.output.read_text().rpartition('"capture stopped"')[2]
    assert shop.execute("SELECT count(*) FROM cdcflow.released_slots") == [(0,)]


@pytest.mark.long
def test_guard_ends_a_reader_that_does_not_advance(shop: ComparedShop) -> None:
    """A daemon that hangs keeps its slot active, and holds the disk all the same."""
    assert shop.daemon is not None
    shop.daemon.send_signal(signal.SIGSTOP)
    use_budget_up(shop)
    assert shop.execute("SELECT active FROM pg_replication_slots WHERE slot_name = 'budgeted'") == [(True,)]
    guard(shop, "--once")
    assert kept(shop) is None
    shop.daemon.send_signal(signal.SIGCONT)
    assert_repaired(shop)


@pytest.mark.long
def test_guard_never_drops_another_programs_slot(shop: ComparedShop) -> None:
    """A name in a settings file may be wrong; what another program has not read yet is not cdcflow's to drop."""
    shop.stop()
    shop.execute("SELECT pg_create_logical_replication_slot('others', 'test_decoding')")
    shop.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    fill(shop, BUDGET + (4 << 20))
    for name in ("others", "standby"):
        said = guard(shop, "--once", "--slot", name, code=78)
        assert "does not belong to cdcflow" in said
        shop.execute(procedure())
        shop.execute(f"CALL cdcflow.guard('{name}', {BUDGET})")
    assert len(shop.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name IN ('others', 'standby')")) == 2
    shop.execute("SELECT pg_drop_replication_slot(name) FROM unnest(ARRAY['others', 'standby']) AS name")


@pytest.mark.long
def test_slot_that_an_operator_drops_still_stops_the_daemon(shop: ComparedShop) -> None:
    """Unknown means stop: without a note no release has happened, whatever the settings allow."""
    shop.stop()
    shop.execute("SELECT pg_drop_replication_slot('budgeted')")
    assert "slot budgeted is gone" in shop.refused()


@pytest.mark.long
def test_settings_that_stop_keep_the_log(shop: ComparedShop) -> None:
    """`then: stop` is the default: more is kept, and operators are warned."""
    shop.stop()
    shop.settings["source"]["log_budget_then"] = "stop"
    shop.write()
    use_budget_up(shop)
    assert "100 % of the log's budget is used" in guard(shop, "--once")
    assert (kept(shop) or 0) > BUDGET
    shop.start("items", "notes")
    shop.assert_copies_equal_source("items", ["id", "name"])


@pytest.mark.long
def test_slot_that_the_server_invalidates_is_released_as_well(shop: ComparedShop, server: PostgresServer) -> None:
    """P38: the server's own limit may come first; what follows is the same."""
    shop.stop()
    server.reload(max_slot_wal_keep_size="16MB")
    try:
        use_budget_up(shop)
        fill(shop, 4 * SEGMENT)
        shop.execute("SELECT pg_switch_wal()", "CHECKPOINT")
        lost = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'budgeted' AND wal_status = 'lost'"
        wait_until(lambda: shop.execute(lost) != [], "the slot to be invalidated")
    finally:
        server.reload(max_slot_wal_keep_size="")
    shop.start("items", "notes")
    assert_repaired(shop)


RELEASING = ["before:note", "after:note", "before:drop", "after:drop", "after:finish"]
RESUMING = ["before:new slot", "after:new slot", "before:cut", "after:cut", "before:sync", "after:sync"]


def answers(shop: ComparedShop) -> bool:
    """Whether a daemon runs."""
    return ask(shop.folder / "log", {"op": "ping"}) is not None


def killed_at(shop: ComparedShop, point: str, act: Callable[[], object] = lambda: None) -> None:
    """Run a daemon until it has killed itself at a point; `act` leads it there."""
    with shop.output.open("ab") as file:
        daemon = subprocess.Popen(
            [sys.executable, KILLED_DAEMON, shop.file, point], cwd=shop.folder, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: answers(shop) or daemon.poll() is not None, "a daemon")
        act()
        assert daemon.wait(PATIENCE_S) == -9, shop.output.read_text()
    finally:
        daemon.kill()
        daemon.wait()


@pytest.mark.long
@pytest.mark.parametrize("point", RELEASING)
def test_daemon_killed_while_it_releases_continues(shop: ComparedShop, point: str) -> None:
    """Between the note and the drop nothing else knows of the release."""
    shop.stop()
    shop.execute("UPDATE items SET name = 'before the pause' WHERE id = 11")
    shop.start("items", "notes")
    ask(shop.folder / "log", {"op": "pause-capture"})
    shop.wait_until(lambda status: status["state"] == "paused", "the capture to pause")
    shop.stop()
    killed_at(shop, point, lambda: use_budget_up(shop))
    shop.start()
    wait_until(lambda: answers(shop), "a daemon")
    wait_until(lambda: kept(shop) is None, "the release to be finished", more=shop.output.read_text)
    ask(shop.folder / "log", {"op": "resume-capture"})
    assert_repaired(shop)


@pytest.mark.long
@pytest.mark.parametrize("point", RESUMING)
def test_daemon_killed_while_it_takes_a_new_position_continues(shop: ComparedShop, point: str) -> None:
    """The new slot exists before any checkpoint has it, and the gap before any table is repaired."""
    shop.kill()
    use_budget_up(shop)
    guard(shop, "--once")
    killed_at(shop, point)
    shop.execute("DELETE FROM items WHERE id = 20")
    shop.start("items", "notes")
    assert_repaired(shop)


@pytest.mark.long
@pytest.mark.parametrize("after_s", [1.0, 3.0, 5.0, 7.0])
def test_daemon_killed_while_it_repairs_repairs_again(shop: ComparedShop, after_s: float) -> None:
    """The log has what is unverified, so no process needs to remember it."""
    shop.kill()
    use_budget_up(shop)
    guard(shop, "--once")
    shop.start("notes")
    time.sleep(after_s)
    shop.kill()
    shop.execute("DELETE FROM items WHERE id = 21")
    shop.start("items", "notes")
    assert_repaired(shop)

"""A log that moves to another server, or to another address: what continues without a gap, and what is repaired."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.servers.debian import NotToBeHad, postgres_17
from tests.servers.postgres import Database, PostgresServer, binaries, of_other_identity, upgrade
from tests.support.polling import PATIENCE_S
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.config import load
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.folder import FolderReader
from cdcflow.wiring.logs import newest_checkpoint

pytestmark = pytest.mark.postgres

KILLED = Path(__file__).parents[2] / "support" / "kill" / "killed_move.py"
ROWS = 300
SCHEMA = (
    "CREATE TYPE mood AS ENUM ('good', 'bad')",
    "CREATE TABLE items (id int PRIMARY KEY, name varchar(40), mood mood DEFAULT 'good', body text)",
    "CREATE TABLE notes (note varchar(40))",
    "ALTER TABLE notes REPLICA IDENTITY FULL",
    "CREATE TABLE parts (id int PRIMARY KEY, item int) PARTITION BY RANGE (id)",
    "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (100000)",
    f"INSERT INTO items SELECT n, 'name ' || n, 'bad', repeat('x', 3000) FROM generate_series(1, {ROWS}) AS n",
    "INSERT INTO notes VALUES ('a'), ('b')",
    "INSERT INTO parts SELECT n, n FROM generate_series(1, 200) AS n",
)
TABLES = {"items": ("id", "name", "mood"), "notes": ("note",), "parts": ("id", "item")}


def changes(at: int) -> tuple[str, ...]:
    """Statements of every kind, other ones for each number."""
    return (
        f"UPDATE items SET name = 'changed {at}' WHERE id % 7 = {at % 7}",
        f"DELETE FROM items WHERE id IN ({at}, {at + 50})",
        f"INSERT INTO items VALUES ({1000 + at}, 'new {at}')",
        f"UPDATE items SET id = {5000 + at} WHERE id = {at + 100}",
        f"INSERT INTO notes VALUES ('note {at}')",
        f"UPDATE parts SET item = -{at} WHERE id % 11 = {at % 11}",
        f"DELETE FROM parts WHERE id = {at + 20}",
    )


def at(shop: ComparedShop, database: Database) -> None:
    """Have the shop's statements go to this database; its settings stay."""

    def execute(*statements: str) -> list[tuple[Any, ...]]:
        with database.session() as connection:
            for statement in statements:
                done = connection.execute(statement.encode())
            return done.fetchall() if done.description else []

    shop.execute = execute


def follow(shop: ComparedShop, said: str) -> None:
    """Do to the settings file what the command prints."""
    found = re.search(r"set source\.url: (\S+) in (\S+)", said)
    assert found is not None, said
    assert Path(found[2]).resolve() == shop.file.resolve()
    shop.settings["source"]["url"] = found[1]
    shop.write()


def assert_equal(shop: ComparedShop) -> None:
    for table, columns in TABLES.items():
        shop.assert_copies_equal_source(table, columns)


def generations(shop: ComparedShop) -> dict[str, int]:
    status = json.loads(shop.said("status", "--json", code=None).splitlines()[-1])
    return {name.partition(".")[2]: table["generation"] for name, table in status["tables"].items()}


def is_proven(status: dict[str, Any]) -> bool:
    """Each table was compared after its gap, or read again."""
    tables = [status["tables"][f"public.{name}"] for name in TABLES]
    return all(t["state"] == "done" and (t.get("gap") is None or t["gap"]["proven"] is not None) for t in tables)


@contextlib.contextmanager
def begun(server: PostgresServer, folder: Path) -> Iterator[ComparedShop]:
    """A shop on this server, whose tables are read and whose changes are captured; its daemon is stopped."""
    database = server.create_database("shop")
    with ComparedShop.on_postgres(database, folder) as shop:
        shop.execute(*SCHEMA)
        shop.start(*TABLES)
        shop.execute(*changes(1))
        assert_equal(shop)
        shop.stop()
        yield shop


def move(shop: ComparedShop, to: Database, *options: str, code: int = 0) -> str:
    """The output of `cdcflow move`."""
    return shop.said_both("move", "--to", to.url, *([] if "--dry-run" in options else ["--yes"]), *options, code=code)


def checkpoint(shop: ComparedShop) -> str:
    """The log's end as its readers see it, and what identifies its source."""
    return shop.said("log", "ls", "--json") + (shop.folder / "log" / "log.json").read_text()


def run_on(shop: ComparedShop, to: Database, *, number: int) -> None:
    """Capture at the new server, with changes before and after the start, until all tables equal it."""
    at(shop, to)
    shop.execute(*changes(number))
    shop.start(*TABLES)
    shop.execute(*changes(number + 1))
    shop.wait_until(is_proven, "every table to be proven or read again")
    assert_equal(shop)
    shop.verify("--against", "both", code=0)


def gaps(shop: ComparedShop) -> list[dict[str, Any]]:
    return list(json.loads(shop.said("log", "gaps", "--json")))


def refused_at(shop: ComparedShop, old: Database) -> str:
    """The message of a daemon whose settings have the old address again."""
    url, shop.settings["source"]["url"] = shop.settings["source"]["url"], old.url
    shop.write()
    command = [sys.executable, "-m", "cdcflow.cli", "run"]
    ended = subprocess.run(command, cwd=shop.folder, capture_output=True, text=True, timeout=PATIENCE_S)
    shop.settings["source"]["url"] = url
    shop.write()
    assert ended.returncode in (65, 78), ended.stdout + ended.stderr
    return ended.stderr


# ── an upgrade in place ─────────────────────────────────────────────────────────────────────────────────────


def test_upgraded_server_with_its_slot_continues_without_a_gap(tmp_path: Path) -> None:
    """What was written there before the move comes through the slot that pg_upgrade carried over. No row is read again,
    and the old server feeds the log no more."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        before = generations(shop)
        upgrade(old, new)
        target = Database(new, "shop")
        at(shop, target)
        shop.execute(*changes(2))
        planned = move(shop, target, "--dry-run")
        assert "the log's server after an upgrade" in planned
        assert "missing:   nothing" in planned
        said = move(shop, target)
        follow(shop, said)
        run_on(shop, target, number=3)
        assert gaps(shop) == []
        assert generations(shop) == before, "a table was read again"
        shop.stop()
        old.start()
        assert "belongs to" in refused_at(shop, Database(old, "shop"))


@contextlib.contextmanager
def writing(database: Database, numbers: Iterator[int]) -> Iterator[None]:
    """Inside, another session changes rows without a pause."""
    ends = threading.Event()

    def write() -> None:
        with database.session(autocommit=True) as connection:
            while not ends.is_set():
                for statement in changes(next(numbers)):
                    with contextlib.suppress(psycopg.errors.UniqueViolation):
                        connection.execute(statement.encode())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@pytest.mark.long
def test_upgrade_from_17_to_18_under_load(tmp_path: Path) -> None:
    """The daemon stops last, as an upgrade requires; the new server is written to before, during and after the move."""
    try:
        programs = postgres_17()
    except NotToBeHad as error:
        pytest.fail(f"PostgreSQL 17 is not to be had here: {error}")
    numbers = itertools.count(2)
    with PostgresServer(programs) as old, PostgresServer() as new, begun(old, tmp_path) as shop:
        before, source = generations(shop), Database(old, "shop")
        shop.start(*TABLES)
        with writing(source, numbers):
            shop.wait_until(lambda status: status["next_offset"] > 3000, "some changes")
        assert_equal(shop)
        shop.stop()
        upgrade(old, new)
        target = Database(new, "shop")
        at(shop, target)
        with writing(target, numbers):
            assert "pg_upgrade carried slot" in move(shop, target, "--dry-run")
            follow(shop, move(shop, target))
            shop.start(*TABLES)
            reached = newest_checkpoint(load(shop.file)).next_offset
            shop.wait_until(lambda status: status["next_offset"] > reached + 3000, "changes of the new server")
        assert_equal(shop)
        shop.verify("--against", "both", code=0)
        assert gaps(shop) == []
        assert generations(shop) == before, "a table was read again"
        ends = pa.concat_tables(FolderReader(Layout(shop.folder / "log")).read_transactions())
        positions = ends.filter(pc.equal(ends.column("kind"), "source")).column("position").to_pylist()
        assert positions == sorted(set(positions)), "positions are ordered across the upgrade, and none came twice"


@pytest.mark.long
def test_server_below_17_is_compared_after_its_upgrade(tmp_path: Path) -> None:
    """pg_upgrade drops slots there, so the tables are compared, which keep their numbers: no row is read again that is
    equal."""
    programs = next(path for name, path in binaries().items() if name.startswith("system"))
    with PostgresServer(programs) as old, PostgresServer() as new, begun(old, tmp_path) as shop:
        before = generations(shop)
        shop.execute(*changes(2))  # the slot has not delivered these
        upgrade(old, new)
        target = Database(new, "shop")
        planned = move(shop, target, "--dry-run")
        assert "is compared; rows that differ are corrected" in planned
        follow(shop, move(shop, target))
        run_on(shop, target, number=3)
        assert len(gaps(shop)) == 1
        after = generations(shop)
        assert (after["items"], after["parts"]) == (before["items"], before["parts"])


@pytest.mark.long
@pytest.mark.parametrize(
    "spoil",
    [
        "INSERT INTO notes VALUES ('unseen')",
        "DELETE FROM items WHERE id = 60",
    ],
)
def test_slot_that_a_person_created_after_the_upgrade_proves_nothing(tmp_path: Path, spoil: str) -> None:
    """It has the right name and position, but a change before it would be missing indefinitely."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        ((name,),) = old.execute("SELECT slot_name FROM pg_replication_slots")
        old.execute(f"SELECT pg_drop_replication_slot('{name}')")
        upgrade(old, new)
        target = Database(new, "shop")
        at(shop, target)
        shop.execute(spoil)
        new.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')", "shop")
        new.restart()
        assert "is not proven" in move(shop, target, "--dry-run")
        follow(shop, move(shop, target))
        run_on(shop, target, number=2)
        assert len(gaps(shop)) == 1


@pytest.mark.long
def test_publication_that_was_altered_after_the_upgrade_proves_nothing(tmp_path: Path) -> None:
    """A table that was out of it for a moment lost changes, whatever the slot has."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        upgrade(old, new)
        target = Database(new, "shop")
        at(shop, target)
        ((name,),) = new.execute("SELECT pubname FROM pg_publication", "shop")
        shop.execute(f"ALTER PUBLICATION {name} DROP TABLE items", *changes(2))
        shop.execute(f"ALTER PUBLICATION {name} ADD TABLE items")
        assert "was altered after the upgrade" in move(shop, target, "--dry-run")
        follow(shop, move(shop, target))
        run_on(shop, target, number=3)


# ── another server ──────────────────────────────────────────────────────────────────────────────────────────


def copied(old: Database, new: PostgresServer) -> Database:
    """A database with everything that pg_dump finds in the old one."""
    dump = old.server.run("pg_dump", "-h", "127.0.0.1", "-p", str(old.server.port), "-U", "postgres", old.name)
    target = new.create_database("restored")
    new.psql(dump, target.name)
    return target


def test_restored_dump_is_compared_and_repaired_by_the_daemon(tmp_path: Path) -> None:
    """Changes that only the old server had after the dump are undone in the log, and those of the new one arrive."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        source = Database(old, "shop")
        target = copied(source, new)
        shop.execute(*changes(2))  # only the old server has them
        shop.start()
        assert_equal(shop)
        shop.stop()
        end = checkpoint(shop)
        planned = move(shop, target, "--dry-run")
        assert "another server with the same tables" in planned
        assert "there will be a gap" in planned
        assert checkpoint(shop) == end
        assert new.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]
        follow(shop, move(shop, target))
        run_on(shop, target, number=3)
        assert len(gaps(shop)) == 1
        shop.stop()
        assert "belongs to" in refused_at(shop, source)
        left = old.execute("SELECT slot_name FROM pg_replication_slots")
        assert len(left) == 1, "the old server may be needed again"


def is_of(shop: ComparedShop, server: PostgresServer) -> bool:
    """Whether the log's end is a position of this server."""
    ((system,),) = server.execute("SELECT system_identifier::text FROM pg_control_system()")
    return bool(newest_checkpoint(load(shop.file)).source["system_id"] == system)


POINTS = ["publication", "slot", "cut", "sync", "identity", "log.json"]


@pytest.mark.long
@pytest.mark.parametrize("point", [f"{when}:{name}" for name in POINTS for when in ("before", "after")])
def test_killed_move_starts_over_or_is_done(tmp_path: Path, point: str) -> None:
    """Until the cut is durable the log continues at the old server; afterwards the same command finishes the move."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        target = copied(Database(old, "shop"), new)
        options = ["--to", target.url, "--yes", "--config", str(shop.file)]
        killed = subprocess.run(
            [sys.executable, KILLED, point, *options], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert killed.returncode == -9, killed.stdout + killed.stderr
        if is_of(shop, new):
            assert "belongs to" in refused_at(shop, Database(old, "shop"))
        else:
            assert point.partition(":")[2] in ("publication", "slot", "cut") or point == "before:sync"
            shop.start(*TABLES)
            shop.execute(*changes(2))
            assert_equal(shop)
            shop.stop()
        follow(shop, move(shop, target))
        run_on(shop, target, number=3)
        assert len(gaps(shop)) == 1


# ── the same server ─────────────────────────────────────────────────────────────────────────────────────────


def test_renamed_database_continues(tmp_path: Path) -> None:
    """Slot, positions and tables are the same."""
    with PostgresServer() as server, begun(server, tmp_path) as shop:
        before = generations(shop)
        server.execute("ALTER DATABASE shop RENAME TO store")
        target = Database(server, "store")
        planned = move(shop, target, "--dry-run")
        assert "the log's own server" in planned
        follow(shop, move(shop, target))
        run_on(shop, target, number=2)
        assert gaps(shop) == []
        assert generations(shop) == before


def standby_of(primary: PostgresServer, **settings: str) -> PostgresServer:
    """A standby that follows, not started yet."""
    address = f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"
    made = PostgresServer(settings={"primary_conninfo": address, **settings})
    made._user.own(made.directory)
    made.run("pg_basebackup", "-X", "stream", "-c", "fast", "-d", address, "-D", made.data)
    (made.data / "standby.signal").touch()
    return made


@pytest.mark.long
def test_promoted_standby_without_the_slot_is_compared(tmp_path: Path) -> None:
    """It is the same system on another host. A standby is refused until it is promoted."""
    with PostgresServer() as primary, begun(primary, tmp_path) as shop, standby_of(primary) as standby:
        target = Database(standby, "shop")
        assert "is a standby" in move(shop, target, "--dry-run", code=78)
        standby.execute("SELECT pg_promote()")
        primary.stop()
        planned = move(shop, target, "--dry-run")
        assert "the log's own server" in planned
        assert "there will be a gap" in planned
        follow(shop, move(shop, target))
        run_on(shop, target, number=2)


@pytest.mark.long
def test_promoted_standby_that_lacks_changes_is_refused_and_the_remedy_works(tmp_path: Path) -> None:
    """An asynchronous failover lost transactions that the log has: only an operator may abandon them."""
    with PostgresServer() as primary, begun(primary, tmp_path) as shop, standby_of(primary) as standby:
        target = Database(standby, "shop")
        standby.execute("SELECT pg_promote()")
        shop.execute(*changes(2))
        shop.start()
        assert_equal(shop)
        shop.stop()
        primary.stop()
        said = move(shop, target, "--dry-run", code=78)
        assert "branched off before" in said
        assert "run `cdcflow move` with --compare" in " ".join(said.split())
        follow(shop, move(shop, target, "--compare"))
        run_on(shop, target, number=3)


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_be_right_is_refused(tmp_path: Path) -> None:
    """Each refusal leaves log and target unchanged."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        end, system = checkpoint(shop), "system_id"
        empty = new.create_database("empty")
        assert "has none of the tables" in move(shop, empty, code=78)
        new.execute("CREATE TABLE items (id int PRIMARY KEY)", "empty")
        said = move(shop, empty, code=78)
        assert "lacks captured tables: public.notes, public.parts" in said
        assert '"!public.notes", "!public.parts"' in said
        assert "names no database" in shop.said_both("move", "--to", "postgresql://u@h", "--yes", code=78)
        new.reload(wal_level="replica")
        new.restart()
        assert "wal_level" in move(shop, empty, code=78)
        new.restart(wal_level="logical")
        shop.start(*TABLES)
        assert "a daemon captures into this log" in move(shop, empty, code=78)
        shop.stop()
        assert new.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]
        assert system in end


@pytest.mark.long
def test_printed_remedies_lead_to_the_move(tmp_path: Path) -> None:
    """A slot of another program, and tables that the target lacks: each refusal ends by what it prints."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        target = copied(Database(old, "shop"), new)
        at(shop, target)
        shop.execute("DROP TABLE notes", "DROP TABLE parts")
        ((name,),) = old.execute("SELECT slot_name FROM pg_replication_slots")
        new.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')", target.name)
        said = move(shop, target, code=78)
        assert "for another purpose" in said
        statement = re.search(r"run (SELECT pg_drop_replication_slot\('\w+'\)) there", said)
        assert statement is not None
        new.execute(statement[1], target.name)
        said = move(shop, target, code=78)
        excluded = re.findall(r'"(![\w.]+)"', said)
        assert excluded == ["!public.notes", "!public.parts"]
        shop.settings["source"]["tables"] += excluded
        shop.write()
        follow(shop, move(shop, target))
        shop.start("items")
        shop.assert_copies_equal_source("items", TABLES["items"])

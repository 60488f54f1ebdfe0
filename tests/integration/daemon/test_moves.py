"""A log that moves to another server, or to another address: what continues without a gap, and what is repaired."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.servers.debian import NotToBeHad, postgres_17
from tests.servers.postgres import (
    Database,
    PostgresServer,
    binaries,
    forget_attribute_versions,
    of_other_identity,
    upgrade,
)
from tests.support.kill.killed_move import kill_move_at
from tests.support.polling import PATIENCE_S, wait_until
from tests.support.verify.compared_shop import ComparedShop

from cdcflow import wiring
from cdcflow.capture.interleave.messages import Chunk
from cdcflow.config import load
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.folder import FolderReader
from cdcflow.model.position import Token
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.pages import shares_of
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.wiring.executors import _numbers, _part_reader
from cdcflow.wiring.logs import newest_checkpoint

pytestmark = pytest.mark.postgres

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
def begun(server: PostgresServer, folder: Path, rules: Mapping[str, Any] | None = None) -> Iterator[ComparedShop]:
    """A shop on this server, whose tables are read and whose changes are captured; its daemon is stopped. `rules`: the
    settings' `tables`."""
    database = server.create_database("shop")
    with ComparedShop.on_postgres(database, folder) as shop:
        shop.settings["tables"] = dict(rules or {})
        shop.write()
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


def stop_in_order(shop: ComparedShop, server: PostgresServer) -> None:
    """Stop the server while the daemon runs, then the daemon, as docs/move.md describes. The server's own work (here
    ANALYZE) writes to the log too, and pg_upgrade refuses a slot that has not delivered all of it."""
    shop.start(*TABLES)
    shop.execute("ANALYZE")
    server.stop()
    shop.stop()


# ── an upgrade in place ─────────────────────────────────────────────────────────────────────────────────────


def test_upgraded_server_with_its_slot_continues_without_a_gap(tmp_path: Path) -> None:
    """What was written there before the move comes through the slot that pg_upgrade carried over. No row is read again,
    and the old server feeds the log no more."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        before = generations(shop)
        stop_in_order(shop, old)
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
        forget_attribute_versions(source)
        shop.start(*TABLES)
        with writing(source, numbers):
            shop.wait_until(lambda status: status["next_offset"] > 3000, "some changes")
        assert_equal(shop)
        shop.stop()
        stop_in_order(shop, old)
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


def copied(old: Database, new: PostgresServer, name: str = "restored") -> Database:
    """A database with everything that pg_dump finds in the old one, whose tables have other oids."""
    dump = old.server.run("pg_dump", "-h", "127.0.0.1", "-p", str(old.server.port), "-U", "postgres", old.name)
    target = new.create_database(name)
    target.execute("CREATE TABLE used_oids (id serial PRIMARY KEY, text text); DROP TABLE used_oids")
    new.psql(dump, target.name)
    assert not set(oids(old).items()) & set(oids(target).items())
    return target


def oids(database: Database) -> dict[str, int]:
    return dict(database.execute(f"SELECT relname, oid::bigint FROM pg_class WHERE relname IN {tuple(TABLES)}"))


ELSEWHERE = (
    "UPDATE items SET name = 'elsewhere' WHERE id IN (10, 11)",
    "UPDATE items SET mood = 'good', body = repeat('y', 3000) WHERE id = 12",
    "DELETE FROM items WHERE id IN (13, 14)",
    "INSERT INTO items VALUES (9000, 'only there')",
    "UPDATE parts SET id = 50000 + id WHERE id = 60",
    "DELETE FROM parts WHERE id = 170",
)
"""What was written at the new server before the move: no stream ever has it."""


@pytest.mark.long
def test_restored_dump_is_compared_and_repaired_by_the_daemon(tmp_path: Path) -> None:
    """Its tables have other oids. Those with a key keep their rows: rows that only the old server had are deleted, rows
    that differ are corrected, and rows that only the new one has are added. Also with a column that is hashed."""
    key = tmp_path / "key"
    key.write_text("a key of at least 32 characters, for tests")
    key.chmod(0o600)
    rules = {"public.items": {"columns": {"body": {"hash": f"${{file:{key}}}"}}}}
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path, rules) as shop:
        source = Database(old, "shop")
        target = copied(source, new)
        shop.execute(*changes(2))  # only the old server has them
        shop.start()
        assert_equal(shop)
        shop.stop()
        for statement in ELSEWHERE:
            target.execute(statement)
        end, before = checkpoint(shop), generations(shop)
        planned = move(shop, target, "--dry-run")
        assert "another server with the same tables" in planned
        assert "there will be a gap" in planned
        assert outcomes(planned) == {"items": "is compared", "notes": "is read again", "parts": "is compared"}
        assert checkpoint(shop) == end
        assert new.execute("SELECT count(*) FROM pg_replication_slots") == [(0,)]
        follow(shop, move(shop, target))
        run_on(shop, target, number=3)
        assert len(gaps(shop)) == 1
        assert generations(shop) == {**before, "notes": before["notes"] + 1}
        shop.stop()
        assert "belongs to" in refused_at(shop, source)
        left = old.execute("SELECT slot_name FROM pg_replication_slots")
        assert len(left) == 1, "the old server may be needed again"


def outcomes(planned: str) -> dict[str, str]:
    """What a plan shows of each table."""
    return dict(re.findall(r"public\.(\w+) +(is compared|is read again|continues|is new)", planned))


@pytest.mark.long
def test_tables_with_other_columns_are_read_again(tmp_path: Path) -> None:
    """A dump closes the hole of a dropped column, and columns of the log are known by their numbers. The default of an
    added column is no difference."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        shop.execute("ALTER TABLE parts DROP item", "ALTER TABLE parts ADD item int")
        shop.execute("ALTER TABLE items ADD stock int NOT NULL DEFAULT 7", *changes(2))
        shop.start(*TABLES)
        assert_equal(shop)
        shop.stop()
        before, target = generations(shop), copied(Database(old, "shop"), new)
        planned = move(shop, target, "--dry-run")
        assert outcomes(planned) == {"items": "is compared", "notes": "is read again", "parts": "is read again"}
        follow(shop, move(shop, target))
        run_on(shop, target, number=3)
        stock = sorted(shop.execute("SELECT id, stock FROM items"))
        shop.merge_until(
            "items", lambda rows: sorted(zip(rows["id"].to_pylist(), rows["stock"].to_pylist(), strict=True)) == stock
        )
        after = generations(shop)
        assert after["items"] == before["items"]
        assert after["notes"] > before["notes"]
        assert after["parts"] > before["parts"]


@pytest.mark.long
def test_promoted_logical_replica_is_compared(tmp_path: Path) -> None:
    """The green side of blue/green, and an upgrade without downtime: the target got its rows through PostgreSQL's own
    replication, and lacks those that had not arrived."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        source = Database(old, "shop")
        schema = old.run("pg_dump", "--schema-only", "-h", "127.0.0.1", "-p", str(old.port), "-U", "postgres", "shop")
        target = new.create_database("green")
        target.execute("CREATE TABLE used_oids (id serial PRIMARY KEY, text text); DROP TABLE used_oids")
        new.psql(schema, target.name)
        source.execute("CREATE PUBLICATION green FOR ALL TABLES")
        address = f"host=127.0.0.1 port={old.port} user=postgres dbname=shop"
        target.execute(f"CREATE SUBSCRIPTION green CONNECTION '{address}' PUBLICATION green")
        shop.start()
        shop.execute(*changes(2))
        wait_until(lambda: are_equal(source, target), "the replica to have everything")
        target.execute("ALTER SUBSCRIPTION green DISABLE")
        shop.execute(*changes(4))  # the replica lacks these
        assert_equal(shop)
        shop.stop()
        target.execute("DROP SUBSCRIPTION green")
        before = generations(shop)
        assert outcomes(move(shop, target, "--dry-run")) == {
            "items": "is compared",
            "notes": "is read again",
            "parts": "is compared",
        }
        follow(shop, move(shop, target))
        run_on(shop, target, number=6)
        assert generations(shop) == {**before, "notes": before["notes"] + 1}


def are_equal(one: Database, other: Database) -> bool:
    """Whether the tables of two databases have the same rows."""
    queries = [f"SELECT {', '.join(columns)} FROM {name} ORDER BY 1" for name, columns in TABLES.items()]
    return all(sorted(one.execute(query)) == sorted(other.execute(query)) for query in queries)


def number_for_executors(shop: ComparedShop) -> int:
    """The number that rows of `items` have when another process reads them."""
    config, table = load(shop.file), TableId("public", "items")
    with closing(wiring.open_source(config)) as source, closing(source.chunks()) as chunks:
        plan = chunks.plan(table, 1).plan
    chunk = Chunk(table, 1, 1, plan, None, 10, Token("read by an executor"))
    (share,) = shares_of(chunk, 1, 1 << 20)
    with closing(_part_reader(config.database, None, PolicyRules({}), _numbers(config))) as reader:  # type: ignore[arg-type]
        return reader.read_part(chunk, share).table.incarnation


@pytest.mark.long
def test_log_that_moved_moves_on_and_its_tables_may_be_recreated(tmp_path: Path) -> None:
    """The numbers of tables hold for every later start and move, also back to the first server; a table that is created
    again after a move is another table."""
    with PostgresServer() as old, of_other_identity() as new, begun(old, tmp_path) as shop:
        source = Database(old, "shop")
        before, target = generations(shop), copied(source, new)
        follow(shop, move(shop, target))
        run_on(shop, target, number=2)
        shop.stop()
        shop.start()  # the numbers are those of the checkpoint
        shop.execute(*changes(4))
        assert_equal(shop)
        assert number_for_executors(shop) == oids(source)["items"]
        assert generations(shop) == {**before, "notes": before["notes"] + 1}
        shop.execute("DROP TABLE parts", "CREATE TABLE parts (id int PRIMARY KEY, item int)")
        shop.execute("INSERT INTO parts VALUES (1, 1), (2, 2), (120, 3)")
        shop.wait_until(lambda s: s["tables"]["public.parts"]["generation"] > before["parts"], "the table to be read")
        assert_equal(shop)
        shop.stop()
        third = copied(target, old, "third")
        said = move(shop, third, "--dry-run", code=78)
        old.execute(drop_slot_of(said), "shop")
        planned = move(shop, third, "--dry-run")
        assert outcomes(planned) == {"items": "is compared", "notes": "is read again", "parts": "is compared"}
        follow(shop, move(shop, third))
        run_on(shop, third, number=5)
        assert generations(shop)["items"] == before["items"]
        assert len(gaps(shop)) == 2


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
        kill_move_at(point, "--to", target.url, "--yes", "--config", str(shop.file))
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


def drop_slot_of(said: str) -> str:
    """The statement in a message about a slot that exists for another purpose."""
    assert "for another purpose" in said
    found = re.search(r"run (SELECT pg_drop_replication_slot\('\w+'\)) there", said)
    assert found is not None, said
    return found[1]


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
        new.execute(drop_slot_of(said), target.name)
        said = move(shop, target, code=78)
        excluded = re.findall(r'"(![\w.]+)"', said)
        assert excluded == ["!public.notes", "!public.parts"]
        shop.settings["source"]["tables"] += excluded
        shop.write()
        follow(shop, move(shop, target))
        shop.start("items")
        shop.assert_copies_equal_source("items", TABLES["items"])

"""`cdcflow drop` on real servers: it removes all of the pipeline from the source, and nothing of others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import Database, PostgresServer
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.daemon.interfaces.control_socket import ControlServer
from cdcflow.wiring.logs import log_id

runner = CliRunner()


def _captured(folder: Path, source: dict[str, Any]) -> Path:
    """Settings in a folder, captured once: the pipeline exists."""
    folder.mkdir()
    (folder / "cdcflow.yaml").write_text(json.dumps({"source": source, "log": {"path": "log"}}))
    wiring.capture(load(folder / "cdcflow.yaml"), once=True).run()
    return folder / "cdcflow.yaml"


def _dropped(settings: Path, *, code: int = 0, typed: str | None = None) -> str:
    options = ["--yes"] if typed is None else []
    done = runner.invoke(app, ["drop", "--config", str(settings), *options], input=typed)
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started


@pytest.fixture
def shop(server: PostgresServer) -> Iterator[Database]:
    made = server.create_database("shop")
    made.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    yield made
    for (slot,) in made.execute("SELECT slot_name FROM pg_replication_slots"):
        made.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    made.drop()


def _objects(shop: Database) -> list[str]:
    sql = (
        "SELECT 'slot ' || slot_name FROM pg_replication_slots UNION ALL"
        " SELECT 'publication ' || pubname FROM pg_publication ORDER BY 1"
    )
    return [name for (name,) in shop.execute(sql)]


@pytest.mark.postgres
def test_postgres_has_nothing_of_a_dropped_pipeline_and_all_of_another(shop: Database, tmp_path: Path) -> None:
    """A leftover slot fills the server's disk. Dropping twice is harmless and is reported; the same holds for half a
    pipeline.
    """
    source = {"kind": "postgres", "url": shop.url, "tables": ["public.orders"]}
    first, second = _captured(tmp_path / "first", source), _captured(tmp_path / "second", source)
    both = _objects(shop)
    assert len(both) == 4
    assert "Aborted" in _dropped(first, code=1, typed="n\n")
    assert _objects(shop) == both
    told = _dropped(first, typed="y\n")
    assert len(re.findall(r"(?m)^removed: (?:slot|publication) cdcflow_[0-9a-f]{8}$", told)) == 2
    assert f"rm -r '{tmp_path}/first/log'" in told
    others = _objects(shop)
    assert len(others) == 2
    assert not any(name in told for name in others)
    again = _dropped(first)
    assert again.count("did not exist: ") == 2
    assert "nothing was removed at the source" in again
    slot = next(name for name in others if name.startswith("slot ")).removeprefix("slot ")
    shop.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    told = _dropped(second)
    assert f"did not exist: slot {slot}" in told
    assert "removed: publication" in told
    assert _objects(shop) == []


@pytest.mark.postgres
def test_a_publication_of_somebodys_own_stays_and_its_sql_removes_it(
    server: PostgresServer, shop: Database, tmp_path: Path
) -> None:
    """Others may read a publication that the settings name. The test follows the role's remedy, too: its table
    stays.
    """
    shop.execute("CREATE ROLE cdc LOGIN REPLICATION SUPERUSER")
    stored = ", publish_generated_columns = stored" if server.version >= 180000 else ""
    shop.execute(f"CREATE PUBLICATION ours FOR TABLE orders WITH (publish_via_partition_root = true{stored})")
    shop.execute("ALTER TABLE orders OWNER TO cdc")
    source = {"kind": "postgres", "url": shop.url_as("cdc"), "tables": ["public.orders"], "publication": "ours"}
    told = _dropped(_captured(tmp_path / "first", {**source, "slot": "mine"}), code=1)
    assert "removed: slot mine" in told
    assert "left: publication ours (the settings name it, so others may read it)" in told
    assert _objects(shop) == ["publication ours"]
    sql = re.search(r"(?m)^    (DROP PUBLICATION .*);$", told)
    assert sql is not None
    shop.execute(sql[1])
    remedy = re.search(r'run (REASSIGN OWNED BY "cdc".*)', told)
    assert remedy is not None
    for statement in filter(None, (part.strip() for part in remedy[1].split(";"))):
        shop.execute(statement)
    assert shop.execute("SELECT count(*) FROM orders") == [(0,)]


@pytest.mark.postgres
def test_a_slot_that_is_read_from_is_refused_by_the_process(shop: Database, tmp_path: Path) -> None:
    """A daemon on another machine has no socket here, and pulling its slot away would cost a full backfill."""
    settings = _captured(tmp_path / "first", {"kind": "postgres", "url": shop.url, "tables": ["public.orders"]})
    config = load(settings)
    source = wiring.open_source(config)
    checkpoint = wiring.log_reader(config).newest_checkpoint()
    prepared = source.prepare(checkpoint, log_id(config)).checkpoint
    source.tables()
    stream = source.stream(prepared, lambda: pytest.fail("no transaction is that large"))
    try:
        before = _objects(shop)
        assert "is in use: process" in _dropped(settings, code=78)
        assert _objects(shop) == before
    finally:
        stream.close()
        source.close()
    assert "removed: slot" in _dropped(settings)


def test_a_running_daemon_is_named_and_a_missing_log_too(tmp_path: Path) -> None:
    """Both before the source is queried: the URL leads nowhere."""
    (tmp_path / "log").mkdir()
    settings = tmp_path / "cdcflow.yaml"
    settings.write_text("source: {kind: postgres, url: 'postgresql://cdc@127.0.0.1:9/shop'}\nlog: {path: log}\n")
    daemon = ControlServer(tmp_path / "log", lambda _, __: {})
    daemon.start()
    try:
        told = _dropped(settings, code=78)
        assert "a daemon captures into this log" in told
    finally:
        daemon.close()
    assert "there is no change log at" in _dropped(settings, code=78)


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_mysql_has_nothing_of_a_dropped_pipeline_and_all_of_another(
    mysql_database: MySQLDatabase, tmp_path: Path
) -> None:
    """The marks of several logs share a table: the last log's drop removes it, and the database that was created for
    it.
    """
    database = mysql_database
    database.execute(f"CREATE TABLE {database.name}.orders (id int PRIMARY KEY)")
    source: dict[str, Any] = {"kind": database.server.flavor, "url": database.url, "tables": [f"{database.name}.*"]}
    source["tls"] = {"mode": "off"}
    first, second = _captured(tmp_path / "first", source), _captured(tmp_path / "second", source)
    slots = "SELECT slot FROM cdcflow.cdcflow_marks"
    before = {slot for (slot,) in database.execute(slots)}
    told = _dropped(first)
    mine = re.findall(r"(?m)^removed: marks of (cdcflow_[0-9a-f]{8}) in cdcflow.cdcflow_marks$", told)
    assert {slot for (slot,) in database.execute(slots)} == before - set(mine)
    assert "left: table of marks cdcflow.cdcflow_marks (other logs have their marks in it)" in told
    assert f"did not exist: marks of {mine[0]}" in _dropped(first)
    database.execute(f"DELETE FROM cdcflow.cdcflow_marks WHERE slot <> {before.difference(mine).pop()!r}")
    told = _dropped(second)
    assert "removed: table of marks cdcflow.cdcflow_marks" in told
    assert "removed: database cdcflow" in told
    assert list(database.execute("SHOW DATABASES LIKE 'cdcflow'")) == []
    assert "did not exist: table of marks cdcflow.cdcflow_marks" in _dropped(second)


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_account_without_a_delete_right_gets_sql_that_removes_the_rows(
    mysql_database: MySQLDatabase, tmp_path: Path
) -> None:
    """The least-privilege account of the docs may write marks, and no more: an administrator ends it."""
    database = mysql_database
    database.execute(f"CREATE TABLE {database.name}.orders (id int PRIMARY KEY)")
    source = {"kind": database.server.flavor, "url": database.url, "tables": [f"{database.name}.*"]}
    settings = _captured(tmp_path / "first", {**source, "tls": {"mode": "off"}})
    global_right = "BINLOG MONITOR" if database.server.flavor == "mariadb" else "REPLICATION CLIENT"
    account = "'ender'@'%'"
    database.execute(
        f"CREATE USER {account}",
        f"GRANT REPLICATION SLAVE, {global_right} ON *.* TO {account}",
        f"GRANT SELECT ON {database.name}.* TO {account}",
        f"GRANT CREATE, SELECT, INSERT, UPDATE ON cdcflow.* TO {account}",
    )
    try:
        url = re.sub(r"//[^@/]*@", "//ender@", database.url)
        settings.write_text(settings.read_text().replace(json.dumps(database.url), json.dumps(url)))
        told = _dropped(settings, code=1)
        sql = re.search(r"(?m)^    (DELETE FROM [^;]*);", told)
        assert sql is not None, told
        assert "the user of source.url may not remove it" in told
        database.execute(sql[1])
        assert "did not exist: marks of" in _dropped(settings, code=1)  # the empty table is left, too
        remedy = re.search(r"(?m)^    (DROP TABLE [^;]*);", _dropped(settings, code=1))
        assert remedy is not None
        database.execute(remedy[1])
        assert "did not exist: table of marks" in _dropped(settings)
    finally:
        database.execute(f"DROP USER {account}", "DROP DATABASE IF EXISTS cdcflow")


@pytest.mark.postgres
def test_control_table_stays_and_its_printed_statement_removes_it(shop: Database, tmp_path: Path) -> None:
    """Its owner made it, and other pipelines may be steered by it."""
    source = {"kind": "postgres", "url": shop.url, "tables": ["public.orders"]}
    settings = _captured(tmp_path / "steered", source)
    shop.execute("CREATE TABLE public.steering (id int PRIMARY KEY)")
    source["control_table"] = "public.steering"
    settings.write_text(json.dumps({"source": source, "log": {"path": "log"}}))
    (statement,) = re.findall(r"run (DROP TABLE [^;]+);", _dropped(settings))
    assert shop.execute("SELECT to_regclass('public.steering') IS NOT NULL") == [(True,)]
    shop.execute(statement)
    assert shop.execute("SELECT to_regclass('public.steering') IS NULL") == [(True,)]

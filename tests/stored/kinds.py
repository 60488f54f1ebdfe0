"""What is written for each kind of archive: logs of each source and in each place, warehouses, settings files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml
from tests.servers.mysql import MySQLServer
from tests.servers.objects import ObjectServer
from tests.servers.postgres import PostgresServer
from tests.stored import statements
from tests.stored.brokers import StoredBroker
from tests.stored.pipelines import FIXED, Pipeline, own_program
from tests.stored.settings import FILES

from cdcflow.demo.servers.processes import free_port

QUICK = {"seal": {"age_max": "1s"}}
NEVER = {"seal": {"age_max": "1h"}}
MODES = {"shop.items": "history", "shop.doomed": "soft_delete", "shop.bare": "append"}


def postgres(tree: Path, folder: Path) -> Pipeline:
    with PostgresServer() as server:
        pipeline = _captured(tree, folder, "postgres", server)
        _log_everything(pipeline, "postgres")
        _upgrade(pipeline)
    return pipeline


def mysql(tree: Path, folder: Path) -> Pipeline:
    with MySQLServer("mysql") as server:
        return _with_binary_log(tree, folder, server)


def mariadb(tree: Path, folder: Path) -> Pipeline:
    with MySQLServer("mariadb") as server:
        return _with_binary_log(tree, folder, server)


def _with_binary_log(tree: Path, folder: Path, server: MySQLServer) -> Pipeline:
    """The archive has the server's binary log, too, with changes after the log's end: another server can serve it."""
    pipeline = _captured(tree, folder, server.flavor, server)
    _log_everything(pipeline, server.flavor)
    pipeline.at_source(statements.LATER)
    server.execute("FLUSH BINARY LOGS")
    (folder / "binlog").mkdir()
    for file in server.data.glob("binlog.??????"):
        shutil.copyfile(file, folder / "binlog" / file.name)
    if server.flavor == "mysql":
        shutil.copyfile(server.data / "auto.cnf", folder / "binlog" / "auto.cnf")
    _upgrade(pipeline)
    return pipeline


def objects(tree: Path, folder: Path) -> Pipeline:
    """A log whose sealed segments are in a store: `store` has the store's files."""
    with PostgresServer() as server, ObjectServer() as store:
        settings = json.loads(store.objects("shop", "log", keep_local="0s").model_dump_json(exclude_none=True))
        pipeline = _captured(tree, folder, "postgres", server, log={"path": "log", "objects": settings, **QUICK})
        with pipeline.daemon():
            pipeline.until_read()
            pipeline.change(statements.CHANGES)
            pipeline.seal()
            pipeline.change(statements.reshaped("postgres"))
            pipeline.seal()
            pipeline.run("log", "compact", "--grace", "0s")
            pipeline.change([statements.LARGE])
            pipeline.seal()
            _expire(pipeline)
            pipeline.configure(log=NEVER)
            pipeline.run("apply", "--yes")
            pipeline.change(statements.OPEN)
        _ask(pipeline)
        store.kill()
        for part in ("buckets", "attributes"):
            shutil.copytree(store.directory / part, folder / "store" / part)
    return pipeline


def kafka(tree: Path, folder: Path) -> Pipeline:
    """A log in a topic: `broker` has the broker's files."""
    with PostgresServer() as server, StoredBroker() as broker:
        log = {"kafka": {"brokers": broker.address, "topic": "shop", "work": "work", "history": "history"}}
        pipeline = _captured(tree, folder, "postgres", server, log=log, merge={"warehouse": "warehouse"})
        with pipeline.daemon():
            pipeline.until_read()
            pipeline.change(statements.CHANGES)
            pipeline.change(statements.reshaped("postgres"))
            pipeline.run_alone("merge")  # which seals into the history
            pipeline.change(statements.OPEN)
        _ask(pipeline)
        broker.stop()
        shutil.copytree(broker.data, folder / "broker")
        shutil.rmtree(folder / "warehouse")
    return pipeline


def serve(tree: Path, folder: Path) -> Pipeline:
    """Collections that were written over HTTP."""
    folder.mkdir()
    settings = {
        "serve": {
            "listen": f"127.0.0.1:{free_port()}",
            "tokens": [{"name": "shop", "role": "operate", "token": "${env:CDCFLOW_STORED_TOKEN}"}],
            "collections": [{"name": "orders", "key": ["id"], "json_schema": _SCHEMA}],
        },
        "log": {"path": "log", **NEVER},
    }
    pipeline = Pipeline(folder, own_program(tree), settings)
    pipeline.configure()
    with pipeline.daemon("serve"):
        pipeline.until("the service to answer", lambda: pipeline.accepts(_puts(range(1, 4)), "first"))
        pipeline.answers.append({"body": _puts(range(1, 4)), "key": "first", "answer": pipeline.answer})
        assert pipeline.accepts(
            [{"op": "increment", "key": 1, "value": {"hits": 2}}, {"op": "delete", "key": 2}], "then"
        )
    pipeline.ask("log", "show", "--json", "--from", "1", "--limit", "1000")
    pipeline.ask("get", "push.orders", "1", "--json")
    return pipeline


_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": "string", "maxLength": 200},
        "hits": {"type": "integer"},
        "placed": {"type": "string", "format": "date-time"},
        "items": {"type": "array"},
    },
    "required": ["id"],
}


def _puts(ids: Sequence[int]) -> list[dict[str, Any]]:
    placed = "2024-01-02T03:04:05.678901Z"
    values = [{"id": n, "note": f"order {n}", "hits": n, "placed": placed, "items": [n, None]} for n in ids]
    return [{"op": "put", "value": value} for value in values]


def warehouses_local(tree: Path, folder: Path) -> Pipeline:
    return _warehouses(tree, folder, "local")


def warehouses_spark(tree: Path, folder: Path) -> Pipeline:
    return _warehouses(tree, folder, "spark")


def _warehouses(tree: Path, folder: Path, engine: str) -> Pipeline:
    """A log with a warehouse of each format that shows an earlier cut, with a table in each mode, merged by one engine.
    They are in a folder with a fixed name, because Iceberg stores whole paths."""
    FIXED.mkdir(parents=True, exist_ok=True)
    with PostgresServer() as server:
        pipeline = _captured(tree, FIXED / engine, "postgres", server)
        files = [_configure(pipeline, table_format, engine) for table_format in ("delta", "iceberg")]
        with pipeline.daemon():
            pipeline.until_read()
            pipeline.seal()
            _merge(pipeline, files)
            pipeline.change([*statements.CHANGES, "DELETE FROM shop.doomed", "INSERT INTO shop.doomed VALUES (2, 'b')"])
            pipeline.seal()
            _merge(pipeline, files)
            pipeline.change(statements.reshaped("postgres"))
            pipeline.configure(log=NEVER)
            pipeline.run("apply", "--yes")
            pipeline.change(["UPDATE shop.orders SET amount = 1 WHERE id < 9", "DELETE FROM shop.doomed"])
        for file in files:
            pipeline.ask("cuts", "--json", "--config", file)
        for file in files:
            pipeline.answers.append({"warehouse": file.removesuffix(".yaml"), "rows": _rows(tree, pipeline, file)})
    shutil.move(FIXED / engine, folder)
    pipeline.folder = folder
    return pipeline


def spools(tree: Path, folder: Path) -> Pipeline:
    """A journal that attaches a spool with the rows of a streamed transaction, and warehouses that still have a table's
    earlier incarnation: it was recreated before their latest cut, and again after it."""
    FIXED.mkdir(parents=True, exist_ok=True)
    with PostgresServer() as server:
        server.restart(logical_decoding_work_mem="64kB")
        pipeline = _captured(tree, FIXED / "spools", "postgres", server)
        files = [_configure(pipeline, table_format, "local") for table_format in ("delta", "iceberg")]
        with pipeline.daemon():
            pipeline.until_read()
            pipeline.seal()
            _merge(pipeline, files)
            pipeline.change(statements.ENDED)
            pipeline.until_shown("shop.doomed", {"id": 2, "w": 22})
            pipeline.seal()
            _merge(pipeline, files)
            pipeline.configure(log=NEVER)
            pipeline.run("apply", "--yes")
            pipeline.change(statements.ENDED_AGAIN)
            pipeline.until_shown("shop.doomed", {"id": 7, "x": "seven"})
            pipeline.change(statements.STREAMED)
        for file in files:
            pipeline.ask("cuts", "--json", "--config", file)
        for file in files:
            pipeline.answers.append({"warehouse": file.removesuffix(".yaml"), "rows": _rows(tree, pipeline, file)})
        _ask_attached(pipeline)
    shutil.move(FIXED / "spools", folder)
    pipeline.folder = folder
    return pipeline


def spools_mysql(tree: Path, folder: Path) -> Pipeline:
    """A journal that attaches the spool of an XA transaction, which was prepared before a row was committed."""
    with MySQLServer("mysql") as server:
        pipeline = _captured(tree, folder, "mysql", server)
        with pipeline.daemon():
            pipeline.until_read()
            pipeline.seal()
            pipeline.configure(log=NEVER)
            pipeline.run("apply", "--yes")
            pipeline.change(statements.PREPARED)
            pipeline.change(["XA COMMIT 'stored'"])
        _ask_attached(pipeline)
    return pipeline


def _ask_attached(pipeline: Pipeline) -> None:
    """What the commands print of a log whose journal needs a spool."""
    assert list((pipeline.folder / "log" / "spool").iterdir()), "the server did not send the transaction in parts"
    pipeline.ask("log", "show", "--json", "--from", "1", "--limit", "100000")
    for command in ("ls", "check"):
        pipeline.ask("log", command, "--json")
    for key in ("30001,large large large ", "1,line 1"):
        pipeline.ask("history", "shop.items", key, "--json")


def _configure(pipeline: Pipeline, table_format: str, engine: str) -> str:
    name = table_format
    each = {table: {"mode": mode} for table, mode in MODES.items()}
    merge = {"engine": engine, "format": table_format, "warehouse": name, "tables": {"each": each}}
    pipeline.configure(f"{name}.yaml", merge=merge)
    return f"{name}.yaml"


def _merge(pipeline: Pipeline, files: Sequence[str]) -> None:
    for file in files:
        pipeline.run_alone("merge", "--config", file)


_READ = """
import json, sys
from cdcflow import local
print(json.dumps({name: table.to_pylist() for name, table in local.read_cut(sys.argv[1]).items()}, default=str))
"""


def _rows(tree: Path, pipeline: Pipeline, file: str) -> Any:
    """Each table's rows at the published cut."""
    command = [own_program(tree)[0], "-c", _READ, str(pipeline.folder / file.removesuffix(".yaml"))]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


_LOAD = """
import json, sys
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
for file in sys.argv[1:]:
    try:
        print(json.dumps([file, load(file).model_dump(mode="json")]))
    except ConfigurationError as error:
        print(json.dumps([file, str(error)]))
"""


def settings(tree: Path, folder: Path) -> Pipeline:
    """Settings files, and the values that they were read as."""
    folder.mkdir()
    pipeline = Pipeline(folder, own_program(tree), {})
    for kind in ("postgres", "mysql", "mariadb"):
        pipeline.run("init", f"init-{kind}.yaml", "--kind", kind)
    for name, text in {**FILES, **_examples(tree)}.items():
        (folder / f"{name}.yaml").write_text(text)
    command = [own_program(tree)[0], "-c", _LOAD, *sorted(file.name for file in folder.glob("*.yaml"))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        file, values = json.loads(line.replace(str(folder), "{folder}"))
        if isinstance(values, str):
            print(f"{file} is not whole: {values}")
            (folder / file).unlink()
        else:
            pipeline.answers.append({"file": file, "values": values})
    return pipeline


def _examples(tree: Path) -> dict[str, str]:
    """The examples of the pages, each with what a whole file needs."""
    found: dict[str, str] = {}
    for page in [tree / "README.md", *sorted((tree / "docs").glob("*.md"))]:
        for number, part in enumerate(page.read_text().split("```yaml\n")[1:], 1):
            text = part.partition("\n```")[0] + "\n"
            values = yaml.safe_load(text)
            if "serve" not in values and "kind" not in values.get("source", {}):
                source = {"kind": "postgres", "url": "postgresql://cdc@db/shop", **values.get("source", {})}
                text = yaml.safe_dump({"source": source}) + text.partition("source:")[0]
            if "log" not in values:
                text += "log: {path: log}\n"
            found[f"page-{page.stem}-{number}"] = text
    return found


def _captured(tree: Path, folder: Path, kind: statements.Kind, server: Any, **sections: Any) -> Pipeline:
    """A pipeline whose source has its tables, and whose settings are written."""
    folder.mkdir()
    database = server.create_database("shop")
    source: dict[str, Any] = {"kind": kind, "url": database.url, "tables": ["shop.*"], "spool_bytes_max": "16KiB"}
    if kind != "postgres":
        source |= {"tls": {"mode": "off"}, "tables_without_key": "whole", "server_id": 4711}

    def execute(listed: Sequence[str]) -> None:
        with closing(database.connect(autocommit=True)) as connection, connection.cursor() as cursor:
            for statement in listed:
                cursor.execute(statement)

    pipeline = Pipeline(
        folder, own_program(tree), {"source": source, "log": {"path": "log", **QUICK}} | sections, execute
    )
    pipeline.at_source(statements.tables(kind))
    pipeline.configure()
    return pipeline


def _log_everything(pipeline: Pipeline, kind: statements.Kind) -> None:
    """Chunks, large transactions, new shapes, commands, repairs, consumers, an index, a compacted segment, a journal
    that is not sealed, and on PostgreSQL a state and an expired part."""
    with pipeline.daemon():
        pipeline.until_read()
        pipeline.change(statements.CHANGES)
        pipeline.run("consumer", "create", "search", "--table", "shop.orders", "--table", "shop.items")
        pipeline.run("consumer", "read", "search", "--json", "--limit", "50", "--commit")
        pipeline.change([statements.LARGE])
        pipeline.seal()
        pipeline.change(statements.reshaped(kind))
        pipeline.seal()
        pipeline.run("log", "compact", "--grace", "0s")
        pipeline.change(statements.ENDED)
        pipeline.until_read()
        pipeline.change(statements.EMPTIED)
        pipeline.run("backfill", "shop.items")
        pipeline.run("table", "reread", "shop.orders", "--key", "30", "--key", "31")
        pipeline.run("table", "repair", "shop.orders", "--key", "32", "--key", "5555")
        pipeline.run("ctl", "pause")
        pipeline.run("ctl", "resume")
        pipeline.change(["UPDATE shop.orders SET amount = 0 WHERE id = 40"])
        pipeline.seal()
        if kind == "postgres":
            _expire(pipeline, "--state")
        pipeline.run("consumer", "create", "late", "--from", "now", "--ops", "cud")
        pipeline.run("log", "index")
        pipeline.configure(log=NEVER)
        pipeline.run("apply", "--yes")
        pipeline.change(statements.OPEN)
    _ask(pipeline)


def _expire(pipeline: Pipeline, *options: str) -> None:
    """Expire all sealed segments except the latest one."""
    cut = json.loads(pipeline.run("log", "ls", "--json"))[-1]["last_cut"]
    pipeline.run("log", "expire", "--before-cut", str(cut), *options)


def _ask(pipeline: Pipeline) -> None:
    """What the commands print of a log that no daemon writes."""
    listed = json.loads(pipeline.run("log", "ls", "--json"))
    first = listed[0].get("first_offset", 1)  # a log in Kafka has ranges of its topic
    pipeline.ask("log", "show", "--json", "--from", str(first), "--limit", "100000")
    for command in ("ls", "commands", "repairs", "check"):
        pipeline.ask("log", command, "--json")
    for key in ("2000", "32", "4002"):
        pipeline.ask("get", "shop.orders", key, "--json")
        pipeline.ask("history", "shop.orders", key, "--json")
    pipeline.ask("range", "shop.orders", "--from", "1000", "--to", "9999", "--json")
    last = pipeline.last()
    pipeline.ask("diff", "shop.orders", str(last["_offset"] - 100), "--json")
    pipeline.ask("transaction", str(last["_txn"]), "--json")
    if (pipeline.folder / "log" / "consumers").exists():
        pipeline.ask("consumer", "ls", "--json")
        pipeline.ask("consumer", "read", "late", "--json")


def _upgrade(pipeline: Pipeline) -> None:
    """Before the source ends: this version's daemon continues a copy of the log, and finds the same rows in both. (Of
    tables whose beginning has expired, the log has not enough to compare.)"""
    copy = pipeline.folder.with_name(f"{pipeline.folder.name} upgraded")
    shutil.copytree(pipeline.folder, copy, ignore=shutil.ignore_patterns("*.sock"))
    program = [sys.executable, "-m", "cdcflow.cli"]
    now = Pipeline(copy, program, pipeline.settings, pipeline.execute, pipeline.steps)
    now.configure()
    with now.daemon():
        now.change(["UPDATE shop.orders SET amount = 1 WHERE id = 41", "DELETE FROM shop.orders WHERE id = 42"])
        now.until_read()
        if pipeline.settings["source"]["kind"] != "postgres":
            print(now.run("verify", "--against", "log"))
    print(now.run("log", "check"))
    now.close()

"""Change logs of an earlier version: read, queried, and continued by this version's writer and daemons."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.servers.mysql import FLAVORS, Flavor, MySQLServer
from tests.servers.objects import ObjectServer
from tests.stored.archives import Stored, printed
from tests.stored.brokers import StoredBroker
from tests.stored.pipelines import Pipeline

from cdcflow.log.read import reader
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OP, TableId
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import Writer, changes, transactions

ORDERS = TableId("shop", "orders")
PROGRAM = [sys.executable, "-m", "cdcflow.cli"]


def unpacked(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    made = Stored(kind, folder / kind)
    monkeypatch.chdir(made.folder)
    return made


@pytest.fixture(params=["postgres", "mysql", "mariadb"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """A log in a folder, of each kind of source."""
    return unpacked(request.param, tmp_path, monkeypatch)


def append(log: Path, *ids: int) -> None:
    """Insert orders with this version's writer, as one transaction, and seal everything."""
    shapes = reader.table_shapes(log)[ORDERS]
    identity = SourceIdentity.from_json(json.loads((log / "log.json").read_text())["source"])
    with closing(FileLog.open(log, identity)) as opened:
        writer = Writer.of(opened)
        at = writer.checkpoint
        rows = [{"id": n, OP: "c"} | ({"remark": f"appended {n}", "grade": n} if len(shapes) > 1 else {}) for n in ids]
        writer.put(transactions([7], [len(ids)], changes(shapes[max(shapes)], rows)))
        assert writer.checkpoint.next_offset == at.next_offset + len(ids)
        writer.checkpoint = replace(writer.checkpoint, position=at.position)
        writer.cut()
        opened.sync()
        opened.roll()
        opened.seal_pending()


def test_commands_print_what_they_printed(stored: Stored) -> None:
    """Every row, its history, the audit record, repairs, consumers: with the rows of the journal, of attached spools,
    of compacted segments, of a state and of an expired part."""
    assert stored.differences() == []
    assert len(stored.answers) > 10


def test_every_row_is_checked(stored: Stored) -> None:
    """Hashes, the chain of manifests, order, and each value once more."""
    printed("log", "check", "--deep")


def test_writer_continues_and_changes_no_earlier_row(stored: Stored) -> None:
    """The journal that a killed daemon left is recovered and sealed; new rows follow without a gap."""
    shown = stored.answers[0]
    append(stored.folder / "log", 9001, 9002)
    now = printed(*shown["command"]).splitlines()
    assert now[:-2] == shown["stdout"].splitlines()
    assert [json.loads(line)["id"] for line in now[-2:]] == [9001, 9002]
    assert json.loads(printed("get", "shop.orders", "9001", "--json"))["values"]["remark"] == "appended 9001"
    printed("log", "check", "--deep")


def test_latest_rows_are_shown_although_the_log_begins_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows are left than were asked for, or the table has none of them: what is left is shown."""
    stored = unpacked("postgres", tmp_path, monkeypatch)
    rows = stored.answers[0]["stdout"].splitlines()
    assert json.loads(rows[0])["_offset"] > 1
    for limit in (1, 7, len(rows) - 1, len(rows), len(rows) + 1, 100_000):
        assert printed("log", "show", "--json", "--limit", str(limit)).splitlines() == rows[-limit:]
    doomed = [row for row in rows if json.loads(row)["_table"] == "shop.doomed"]
    assert printed("log", "show", "--json", "--table", "shop.doomed", "--limit", "9").splitlines() == doomed


def test_consumers_continue_after_their_commits(stored: Stored) -> None:
    """A consumer reads on where it was, with the same cursors."""
    late = next(asked for asked in stored.answers if asked["command"][:3] == ["consumer", "read", "late"])
    last = json.loads(late["stdout"].splitlines()[-1])
    printed("consumer", "commit", "late", last["cursor"])
    append(stored.folder / "log", 9001)
    rest = [json.loads(line) for line in printed("consumer", "read", "late", "--json").splitlines()]
    assert [row["values"]["id"] for row in rest] == [9001]


def test_segments_are_compacted_and_indexed_again(stored: Stored) -> None:
    """Maintenance reads the files of then and writes those of now; the answers stay the same."""
    append(stored.folder / "log", 9001)
    show = stored.answers[0]["command"]
    shown = printed(*show)
    history = printed("history", "shop.orders", "2000", "--json")
    printed("log", "compact", "--grace", "0s")
    printed("log", "index", "--anew")
    assert printed(*show) == shown
    assert printed("history", "shop.orders", "2000", "--json") == history


@pytest.mark.parametrize("kind", ["spools", "spools-mysql"])
def test_rows_of_an_attached_spool_are_read_and_sealed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A streamed transaction with a part that was undone, and an XA transaction, neither of them sealed."""
    stored = unpacked(kind, tmp_path, monkeypatch)
    shown = next(asked for asked in stored.answers if asked.get("command", [])[:2] == ["log", "show"])
    spools = stored.folder / "log" / "spool"
    assert list(spools.iterdir())
    assert stored.differences("log", "history") == []
    append(stored.folder / "log", 9001)
    assert list(spools.iterdir()) == []
    assert printed(*shown["command"]).splitlines()[:-1] == shown["stdout"].splitlines()
    printed("log", "check", "--deep")


@pytest.mark.spread(1)
@pytest.mark.mysql
@pytest.mark.parametrize("flavor", FLAVORS)
def test_daemon_continues_from_the_stored_position(
    flavor: Flavor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the binary log of then, served by another server with the same identity: the daemon reads what follows its
    position and nothing else, and log and source are equal."""
    stored = unpacked(flavor, tmp_path, monkeypatch)
    first = json.loads(stored.answers[0]["stdout"].splitlines()[-1])["_offset"] + 1
    with MySQLServer(flavor) as server:
        become(server, stored)
        stored.configure(source={"url": server.url()}, log={"seal": {"age_max": "1s"}})
        pipeline = Pipeline(stored.folder, PROGRAM, stored.settings(), lambda given: server.execute(*given))
        pipeline.steps = 100
        with closing(pipeline), pipeline.daemon():
            pipeline.change(["UPDATE shop.orders SET remark = 'of now' WHERE id = 60"])
            printed("verify", "--against", "log")
    lines = printed("log", "show", "--json", "--from", str(first), "--limit", "1000").splitlines()
    rows = [json.loads(line) for line in lines]
    told = [(row["_op"], row["_table"], row["id"]) for row in rows]
    assert told == [
        ("c", "shop.orders", 5001),
        ("u", "shop.orders", 50),
        ("d", "shop.items", 11),
        ("u", "shop.orders", 60),
        ("c", "shop.steps", 101),
    ]


def become(server: MySQLServer, stored: Stored) -> None:
    """Give a server the tables, the binary log and the identity of the one that the log was captured from."""
    server.execute(
        "SET SESSION sql_log_bin = 0", "CREATE DATABASE shop CHARACTER SET utf8mb4", *stored.read("executed")
    )
    server.stop()
    for old in server.data.glob("binlog.*"):
        old.unlink()
    files = sorted((stored.folder / "binlog").glob("binlog.??????"))
    for file in (*files, *(stored.folder / "binlog").glob("auto.cnf")):
        shutil.copyfile(file, server.data / file.name)
        shutil.chown(server.data / file.name, server.data.owner(), server.data.group())
    index = server.data / "binlog.index"
    index.write_text("".join(f"./{file.name}\n" for file in files))
    shutil.chown(index, server.data.owner(), server.data.group())
    server.start()


@pytest.fixture
def in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    """A log whose sealed segments are in a bucket."""
    stored = unpacked("objects", tmp_path, monkeypatch)
    server = ObjectServer()
    shutil.copytree(stored.folder / "store", server.directory, dirs_exist_ok=True)
    with server:
        objects = {**stored.settings()["log"]["objects"], "endpoint": server.endpoint}
        stored.configure(log={"objects": objects})
        yield stored


def test_log_in_a_store_is_read(in_a_store: Stored) -> None:
    """The same names and manifests in the bucket, and a folder that has only the latest part."""
    assert in_a_store.differences() == []
    printed("log", "check", "--deep")


def test_log_in_a_topic_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of the topic, its checkpoint, and the history that a merge sealed."""
    stored = unpacked("kafka", tmp_path, monkeypatch)
    with StoredBroker(stored.folder / "broker") as broker:
        stored.configure(log={"kafka": {**stored.settings()["log"]["kafka"], "brokers": broker.address}})
        assert stored.differences() == []
        printed("log", "check", "--deep")


def test_service_continues_a_log_of_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was carried out gets the same answer, and is not carried out again; a new one follows it."""
    stored = unpacked("serve", tmp_path, monkeypatch)
    assert stored.differences() == []
    first = next(asked for asked in stored.answers if "body" in asked)
    stored.configure(serve={"idempotency": {"age": "36500d"}})  # by default an answer is remembered for a day
    pipeline = Pipeline(stored.folder, PROGRAM, stored.settings())
    with pipeline.daemon("serve"):
        pipeline.until("an answer", lambda: pipeline.accepts(first["body"], first["key"]))
        assert pipeline.answer == first["answer"]
        assert pipeline.accepts([{"op": "increment", "key": 1, "value": {"hits": 5}}], "of now")
    row = json.loads(printed("get", "push.orders", "1", "--json"))
    assert row["values"]["hits"] == 8

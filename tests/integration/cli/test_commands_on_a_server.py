"""The commands against a real server: a daemon as a child process, and what the other commands report while it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.polling import wait_until
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.daemon.interfaces.control_socket import ask, user_name

pytestmark = pytest.mark.postgres
CANARY = "c4n4ry-s3cret"
WAIT_S = 90.0
runner = CliRunner()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """One server that requires passwords: the product's own sessions must not depend on trust."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[Database]:
    """A database with two tables; a role that logs in by password reads and replicates."""
    made = postgres.create_database("shop")
    postgres.execute(f"CREATE ROLE cdc LOGIN SUPERUSER PASSWORD '{CANARY}'")
    made.execute("CREATE TABLE orders (id int PRIMARY KEY, words text); CREATE TABLE products (id int PRIMARY KEY)")
    made.execute("INSERT INTO orders SELECT i, 'order ' || i FROM generate_series(1, 3000) i")
    made.execute("INSERT INTO products SELECT i FROM generate_series(1, 10) i")
    rules = ["local all postgres trust", "host all postgres 127.0.0.1/32 trust"]
    postgres.write_hba(
        *rules, "host all all 127.0.0.1/32 scram-sha-256", "host replication all 127.0.0.1/32 scram-sha-256"
    )
    yield made
    postgres.write_hba()
    made.drop()
    postgres.execute("DROP ROLE cdc")


@pytest.fixture
def folder(shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with settings whose password is in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_PASSWORD", CANARY)
    url = shop.url_as("cdc")
    text = (
        f"source: {{kind: postgres, url: '{url}', password: '${{env:SHOP_PASSWORD}}', heartbeat: 500ms}}\n"
        "log: {path: log, seal: {age_max: 1s}}\nservice: {listen: '127.0.0.1:0'}\n"
    )
    (tmp_path / "cdcflow.yaml").write_text(text)
    return tmp_path


class Daemon:
    """`cdcflow run` as a child process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.output = folder / "daemon.log"
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cdcflow.cli", "run", *options],
                cwd=folder,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def wait_until(self, wished: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        def status() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.output.read_text()
            found = ask(self.folder / "log", {"op": "status"})
            return dict(found) if found is not None and wished(found) else None

        return wait_until(status, what, patience_s=WAIT_S, more=self.output.read_text)

    def wait_until_read(self, generation: int = 1) -> dict[str, Any]:
        return self.wait_until(
            lambda s: (
                len(s.get("tables", {})) == 2
                and all(t["state"] == "done" and t["generation"] >= generation for t in s["tables"].values())
            ),
            "all tables to be read",
        )

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


@pytest.fixture
def run(folder: Path) -> Iterator[Callable[..., Daemon]]:
    """Start daemons; what still runs at the end is killed."""
    with ExitStack() as stack:

        def start(*options: str) -> Daemon:
            daemon = Daemon(folder, *options)

            def kill() -> None:
                daemon.process.kill()
                daemon.process.wait()

            stack.callback(kill)
            return daemon

        yield start


def said(*arguments: str, code: int = 0) -> str:
    result = runner.invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    assert CANARY not in result.output
    return result.stdout


def test_daemon_is_seen_from_all_sides_and_stops_at_a_cut(run: Callable[..., Daemon], shop: Database) -> None:
    """One life of a daemon: status, HTTP, log views, SIGTERM; and no secret in its output or arguments (S03)."""
    daemon = run()
    daemon.wait_until_read()
    shop.execute("UPDATE orders SET words = 'changed' WHERE id = 7; DELETE FROM products WHERE id = 10")
    daemon.wait_until(lambda s: s["rows_captured"] >= 2, "the changes")

    status = json.loads(said("status", "--json"))
    assert status["state"] == "capturing"
    assert status["lag_bytes"] is not None
    assert "public.orders" in said("status")
    (line,) = [t for t in daemon.output.read_text().splitlines() if "http listening" in t]
    port = line.rpartition("port=")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as page:
        assert 'cdcflow_table_state{state="done",table="public.orders"} 1.0' in page.read().decode()

    seen_over_http(f"http://127.0.0.1:{port}")
    rows = [json.loads(t) for t in said("log", "show", "--json", "--limit", "5").splitlines()]
    assert len(rows) == 5
    offsets = [row["_offset"] for row in rows]
    assert offsets == list(range(offsets[0], offsets[0] + 5))
    (update,) = [row for row in rows if row["_op"] == "u"]
    assert (update["_table"], update["id"], update["words"]) == ("public.orders", 7, "changed")
    assert " d public.products id=10" in said("log", "show")
    assert len(said("log", "show", "--table", "public.products", "--limit", "100").splitlines()) == 11

    arguments = Path(f"/proc/{daemon.process.pid}/cmdline").read_bytes()
    assert daemon.end() == 0
    assert CANARY.encode() not in arguments
    assert CANARY not in daemon.output.read_text()
    assert "the log is whole" in said("log", "check", "--deep")
    assert "3000" not in said("log", "ls").splitlines()[0]
    assert json.loads(said("status", "--json"))["state"] == "stopped"


def seen_over_http(url: str) -> None:
    """The page, its requests, and the change explorer, of a daemon that captures a real server."""

    def got(path: str) -> Any:
        with urllib.request.urlopen(f"{url}{path}", timeout=WAIT_S) as answer:  # noqa: S310  our own daemon
            return json.load(answer)

    with urllib.request.urlopen(url, timeout=WAIT_S) as page:  # noqa: S310  our own daemon
        assert b"<h1>cdcflow</h1>" in page.read()
    assert got("/readyz") == {"status": "ready"}
    found = got("/api/v1/overview")
    assert found["status"]["tables"]["public.orders"]["state"] == "done"
    assert found["headroom"]["retained_bytes"] is not None
    assert 0 < found["disk"]["free_bytes"] <= found["disk"]["total_bytes"]
    assert (found["merges"], found["caller"]["operations"]) == ([], ["status", "settings"])
    assert [one for one in found["findings"] if "disk" not in one["text"]] == []
    assert got("/api/v1/history")["lag_bytes"]
    newest = got("/api/v1/changes?table=public.orders&key=7&values=true")["changes"][0]
    assert (newest["op"], newest["values"]["words"]) == ("u", "changed")
    row = got("/api/v1/row?table=public.orders&key=7")
    assert (row["state"], row["values"]["words"], row["last"]["offset"]) == ("there", "changed", newest["offset"])
    assert got(f"/api/v1/row?table=public.orders&key=7&as_of={newest['offset'] - 1}")["values"]["words"] != "changed"
    whole = got(f"/api/v1/transactions/{newest['transaction']}")
    assert {change["table"] for change in whole["changes"]} == {"public.orders", "public.products"}


def test_skipped_tables_are_named(run: Callable[..., Daemon], shop: Database) -> None:
    """A new table without a key is in no log; the status must show that."""
    first = run()
    first.wait_until_read()
    assert first.end() == 0
    shop.execute("CREATE TABLE bare (v int); CREATE TABLE bare_too (v int)")
    for state in ("stopped", "capturing"):
        status = json.loads(said("status", "--json"))
        assert (status["state"], status["left_out"]) == (state, ["public.bare", "public.bare_too"])
        assert "public.bare, public.bare_too (`cdcflow doctor` shows why)" in said("status")
        if state == "stopped":
            run().wait_until_read()
    shop.execute("ALTER TABLE bare ADD PRIMARY KEY (v); DROP TABLE bare_too")


def test_backfill_command_reaches_a_running_daemon(run: Callable[..., Daemon]) -> None:
    """A new generation of one table, followed to its end, while the others do not change."""
    daemon = run("--json")
    daemon.wait_until_read()
    found = json.loads(said("backfill", "public.orders", "--json"))
    assert (found["public.orders"]["state"], found["public.orders"]["generation"]) == ("done", 2)
    status = daemon.wait_until(lambda s: True, "a status")
    assert status["tables"]["public.products"]["generation"] == 1
    for line in daemon.output.read_text().splitlines():
        assert json.loads(line)["event"]


def test_backfill_without_a_daemon_does_it_and_ends(folder: Path) -> None:
    """The one-shot use: nothing runs before or after, and the rows are in the log."""
    environment = dict(os.environ)
    command = [sys.executable, "-m", "cdcflow.cli", "backfill", "--json"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: fields["state"] for name, fields in found.items()} == {
        "public.orders": "done",
        "public.products": "done",
    }
    assert found["public.orders"]["rows"] == 3000
    assert CANARY not in done.stdout + done.stderr
    assert len(said("log", "show", "--limit", "5000").splitlines()) == 3010


def test_second_daemon_on_the_same_log_is_refused(run: Callable[..., Daemon]) -> None:
    """P75: two writers would tear the log apart; the first one must not even notice."""
    first = run()
    first.wait_until_read()
    second = run()
    assert second.process.wait(WAIT_S) == 78
    assert "another cdcflow daemon" in second.output.read_text()
    assert first.wait_until(lambda s: True, "a status")["pid"] == first.process.pid
    assert first.end(signal.SIGINT) == 0


def test_paused_table_waits_until_it_is_resumed(run: Callable[..., Daemon], folder: Path, shop: Database) -> None:
    """An operator's command reaches the machine, and status shows its state."""
    path = folder / "cdcflow.yaml"
    path.write_text(path.read_text().replace("heartbeat", "backfill: {rows_per_second_max: 300}, heartbeat"))
    shop.execute("UPDATE orders SET words = repeat(md5(id::text), 50)")  # so that it takes several chunks
    daemon = run()
    daemon.wait_until(lambda s: s.get("tables", {}).get("public.orders", {}).get("units_done", 0) > 0, "a first chunk")
    said("table", "pause", "public.orders")
    daemon.wait_until(lambda s: s["tables"]["public.orders"]["state"] == "paused", "the pause")
    said("table", "adjust", "public.orders", "--rows-per-second-max", "0")
    said("table", "resume", "public.orders")
    daemon.wait_until_read()


def test_daemon_keeps_commands_from_outside_over_a_kill(
    run: Callable[..., Daemon], folder: Path, shop: Database
) -> None:
    """Paused and killed, it starts paused; resumed by SQL it reads rows again; and the log records who sent each
    command.
    """
    path = folder / "cdcflow.yaml"
    path.write_text(path.read_text().replace("heartbeat", "control_table: ops.control, heartbeat"))
    (finding,) = [f for f in json.loads(said("doctor", "--json", code=1)) if f["subject"] == "source.control_table"]
    shop.execute(finding["remedy"].removeprefix("run "))
    (finding,) = [f for f in json.loads(said("doctor", "--json")) if f["subject"] == "source.control_table"]
    assert finding["level"] == "ok"
    daemon = run()
    daemon.wait_until_read()
    assert said("table", "pause", "public.orders", code=1).endswith("(public.orders is done: nothing to pause)\n")
    assert said("ctl", "pause") == "the capture: paused\n"
    daemon.process.kill()
    daemon.process.wait()
    assert "paused until `cdcflow ctl resume`" in said("ctl", "status")
    shop.execute("UPDATE orders SET words = 'meanwhile' WHERE id = 7")

    daemon = run()
    status = daemon.wait_until(lambda s: s["state"] == "paused", "the pause")
    assert status["retained_bytes"] > 0
    (line,) = [t for t in daemon.output.read_text().splitlines()[-9:] if "http listening" in t]
    with urllib.request.urlopen(f"http://127.0.0.1:{line.rpartition('port=')[2]}/health", timeout=WAIT_S) as page:
        assert json.loads(page.read())["status"] == "paused"
    assert "the capture is paused" in runner.invoke(app, ["table", "backfill", "public.orders"]).stderr
    shop.execute("INSERT INTO ops.control (operation) VALUES ('resume-capture')")
    daemon.wait_until(
        lambda s: s["state"] == "capturing" and s["rows_captured"] == 1, "the change that was committed in between"
    )
    assert said("table", "reread", "public.orders", "--key", "7", "--key", "9999") == "public.orders: ordered\n"
    daemon.wait_until(lambda s: s.get("rows_read") == 1, "the row")
    ordered = said("table", "repair", "public.orders", "--key", "7", "--key", "9999", "--known-until", "0/1")
    assert ordered == "public.orders: ordered\n"
    daemon.process.kill()  # the command was answered, so it is in the log
    daemon.process.wait()
    daemon = run()
    daemon.wait_until(lambda s: bool(json.loads(said("log", "repairs", "--json"))), "the repair")
    (repair,) = json.loads(said("log", "repairs", "--json"))
    assert [repair[name] for name in ("name", "keys", "deleted", "known_until")] == ["orders", 2, 1, "0/1"]
    assert said("ctl", "stop") == "the capture: stopping\n"
    assert daemon.process.wait(WAIT_S) == 0

    assert shop.execute("SELECT state, answer::json -> 'capture' ->> 'outcome' FROM ops.control") == [
        ("done", "resumed")
    ]
    told = json.loads(said("log", "commands", "--json"))
    was_refused = "backfill"  # while the capture was paused
    assert [o["op"] for o in told] == [
        "pause",
        "pause-capture",
        was_refused,
        "resume-capture",
        "reread",
        "repair",
        "stop",
    ]
    me = user_name(os.getuid())
    assert [one["asked_by"] for one in told] == [
        f"command line, {me}" if one["op"] != "resume-capture" else "control table, postgres" for one in told
    ]
    assert told[4]["details"] == {"keys": 2}
    assert "words=meanwhile" in said("log", "show", "--limit", "1")
    assert "the log is whole" in said("log", "check", "--deep")


def test_doctor_speaks_of_the_real_server(folder: Path) -> None:
    """The check that a user runs first works with the same settings as the daemon."""
    levels = {finding["level"] for finding in json.loads(said("doctor", "--json"))}
    assert levels <= {"ok", "warning"}


REMEDY = (
    "run `cdcflow run --accept-history-loss`: it creates a new slot and reads all tables again, which also finds "
    "the rows that were deleted in the meantime; or run it with `--keep-rows`, and then `cdcflow repair`, to read only "
    "the rows that differ"
)


def gone(what: str) -> None:
    """`doctor` and `status` name what is gone, and the remedy; both fail."""
    (finding,) = [f for f in json.loads(said("doctor", "--json", code=1)) if f["level"] == "error"]
    assert (finding["subject"], finding["text"].split(":")[0].split(";")[0], finding["remedy"]) == (
        "position",
        what,
        REMEDY,
    )
    assert json.loads(said("status", "--json", code=1))["problems"] == [finding]
    assert f"{finding['text']}\n  {REMEDY}" in said("status", code=1)


def test_lost_slot_and_publication_are_seen_by_doctor_and_status_and_the_remedy_repairs_them(
    run: Callable[..., Daemon], folder: Path, shop: Database
) -> None:
    """P37: both reported that all was well, and "lag 0 B", while the next start could only lose changes.

    The publication is dropped while the daemon runs, the slot while none does: another log's slot is not taken for it.
    """
    path = folder / "cdcflow.yaml"
    path.write_text(path.read_text().replace("500ms", "1h"))  # otherwise the daemon sees it by itself, and ends
    daemon = run()
    daemon.wait_until_read()
    ((name,),) = shop.execute("SELECT slot_name FROM pg_replication_slots")
    (position,) = [f for f in json.loads(said("doctor", "--json")) if f["subject"] == "position"]
    assert position["level"] == "ok"
    assert position["text"].startswith(f"slot {name} and publication {name} exist, and have everything since ")
    assert json.loads(said("status", "--json"))["problems"] == []
    shop.execute(f"DROP PUBLICATION {name}")
    daemon.wait_until(lambda s: bool(s["problems"]), "the loss to be seen")
    gone(f"publication {name} is gone")
    assert daemon.end() == 0
    gone(f"publication {name} is gone")

    def stops_and_is_mended(generation: int) -> None:
        stopped = run()
        assert stopped.process.wait(WAIT_S) == 65
        assert REMEDY in stopped.output.read_text()
        mended = run("--accept-history-loss")
        mended.wait_until_read(generation)
        assert mended.end() == 0
        assert json.loads(said("status", "--json"))["problems"] == []
        said("doctor")

    stops_and_is_mended(2)
    shop.execute(f"SELECT pg_drop_replication_slot('{name}')")
    shop.execute("SELECT pg_create_logical_replication_slot('cdcflow_0123abcd', 'pgoutput')")
    gone(f"slot {name} is gone")
    assert json.loads(said("status", "--json", code=1))["source"]["slot"] == name
    stops_and_is_mended(3)

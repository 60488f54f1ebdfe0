"""`cdcflow run` delivers to each target in a separate process: whatever happens to it, the capture and the other
targets continue, and the target has each change once."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.daemon.test_merge_process import insert, is_running, wait_for_capture, wait_until_ended
from tests.servers.postgres import PostgresServer
from tests.support.daemon.running_shop import Shop, planned, said
from tests.support.plugins import on_path
from tests.support.polling import wait_until
from tests.support.tables.rough_target import STEPS, install_rough_target

pytestmark = pytest.mark.postgres
NAMES = ("copy", "other")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A daemon with two targets, `copy` and `other`."""
    database = postgres.create_database("shop")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    paths = install_rough_target(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)
    with on_path(*paths):
        made = Shop(tmp_path, database)
        made.rest["targets"] = {name: target(name) for name in NAMES}
        made.write()
        yield made
        made.kill()
    database.drop()


def target(name: str, **more: object) -> dict[str, object]:
    return {"kind": "rough", "file": f"{name}.sqlite", "order": f"{name}.order", "every": "100ms", **more}


def order(shop: Shop, name: str, text: str) -> None:
    """Have something happen at a step of a target."""
    written = shop.folder / f"{name}.new"
    written.write_text(text)
    written.replace(shop.folder / f"{name}.order")


def rows(shop: Shop, name: str) -> list[int]:
    """The rows that a target has, also double ones."""
    with closing(sqlite3.connect(shop.folder / f"{name}.sqlite", timeout=30)) as database:
        with contextlib.suppress(sqlite3.OperationalError):  # it does not have the table yet
            return [row for (row,) in database.execute('SELECT id FROM "public.orders" ORDER BY id')]
        return []


def wait_for_rows(shop: Shop, count: int, *names: str) -> None:
    for name in names or NAMES:
        has_all = lambda name=name: rows(shop, name) == list(range(1, count + 1))  # noqa: E731
        wait_until(has_all, f"{count} rows in {name}", patience_s=180, more=shop.output.read_text)


def wait_for_target(shop: Shop, name: str, wished: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
    """The status of a target, once it is as wished."""
    found = shop.wait_until(lambda s: bool(wished((s.get("targets") or {}).get(name) or {})), what)
    return dict(found["targets"][name])


def process_of(shop: Shop, name: str) -> dict[str, Any]:
    return dict(wait_for_target(shop, name, lambda t: t.get("process", {}).get("pid"), f"{name}'s process")["process"])


def test_each_target_has_a_process_that_delivers_what_the_daemon_captures(shop: Shop) -> None:
    """What a user starts once has to be stopped once. Settings of one target do not interrupt the other."""
    shop.start()
    wait_for_rows(shop, insert(shop))
    first, other = process_of(shop, "copy"), process_of(shop, "other")
    assert first["pid"] != other["pid"]
    assert shop.daemon is not None
    assert os.getpriority(os.PRIO_PROCESS, first["pid"]) > os.getpriority(os.PRIO_PROCESS, shop.daemon.pid)
    wait_for_target(shop, "copy", lambda t: t["behind_rows"] == 0 and not t["is_failing"], "no lag")
    assert "copy: 0 rows behind, delivered " in said("status")
    # A second deliverer waits for the first.
    assert f"copy: process {first['pid']} on " in said("deliver", "copy", "--once")
    shop.rest["targets"]["copy"] = target("copy", file="moved.sqlite")
    del shop.rest["targets"]["other"]
    shop.rest["targets"]["third"] = target("third")
    shop.write()
    plan = planned()
    assert {change["taken"] for change in plan["settings"]} == {"running"}
    assert plan["delivering"] == ["copy", "third"]
    said("apply", "--yes")
    wait_for_rows(shop, insert(shop), "moved", "third")
    wait_until_ended(other["pid"])
    assert process_of(shop, "copy")["pid"] != first["pid"]
    assert rows(shop, "other") == rows(shop, "copy") == [1, 2]
    pids = [process_of(shop, name)["pid"] for name in ("copy", "third")]
    shop.end()
    assert not any(map(is_running, pids))
    assert {event["target"] for event in shop.events("target is delivered")} == {"copy", "other", "third"}
    assert "copy: 0 rows behind" in said("status")
    assert said("deliver", "--once") == ""


@pytest.mark.long
def test_target_that_fails_stops_neither_the_capture_nor_other_targets(shop: Shop) -> None:
    """Its reason and remedy are shown, and no value; it continues by itself when the reason is gone."""
    shop.database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    shop.write(tables=["public.*"])
    shop.rest["targets"]["other"] = target("other", tables=["public.orders"])
    shop.write()
    order(shop, "copy", "begun refuse public.orders")
    shop.start()
    wait_for_rows(shop, insert(shop), "other")
    found = wait_for_target(shop, "copy", lambda t: t.get("stopped"), "a table that has stopped")
    assert found["stopped"]["public.orders"]["reason"] == "no room for this table"
    assert list(found["stopped"]) == ["public.orders"]
    assert "not delivered: public.orders: no room for this table; make room" in said("status")
    order(shop, "copy", "opened fault")
    found = wait_for_target(shop, "copy", lambda t: t["is_failing"], "a failure")
    assert "kind rough raised ValueError" in found["process"]["failing"]["reason"]
    assert "c4n4ry-v4lue" not in shop.output.read_text() + str(shop.ask("status"))
    wait_for_capture(shop)
    wait_for_rows(shop, insert(shop), "other")
    (shop.folder / "copy.order").unlink()
    wait_for_rows(shop, insert(shop))
    wait_for_target(shop, "copy", lambda t: not t["is_failing"] and not t["stopped"], "the end of the trouble")
    shop.end()


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "changes"])
def test_target_has_each_change_once_wherever_its_process_is_killed(shop: Shop, step: str, is_whole: bool) -> None:
    """The kernel kills the largest process."""
    if is_whole:
        order(shop, "copy", f"{step} kill")
    shop.start()
    if not is_whole:
        wait_for_rows(shop, insert(shop))
        order(shop, "copy", f"{step} kill")
    wait_for_rows(shop, insert(shop))
    ends = wait_for_target(shop, "copy", lambda t: not t["is_failing"], "the next process")["process"]["ends"]
    assert (ends["killed"], sum(ends.values())) == (1, 1)
    assert not any(process_of(shop, "other")["ends"].values())
    wait_for_rows(shop, insert(shop))
    shop.end()


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "cause", "more"),
    [
        ("hang", "stuck", {"progress_timeout": "15s"}),
        ("stop", "silent", {"progress_timeout": "15s"}),
        ("eat", "memory", {"memory_max": "600MiB"}),
    ],
)
def test_process_that_hangs_or_eats_memory_is_ended(shop: Shop, what: str, cause: str, more: dict[str, str]) -> None:
    """Neither the capture nor the other target waits for it."""
    shop.rest["targets"]["copy"] = target("copy", **more)
    shop.write()
    shop.start()
    wait_for_rows(shop, insert(shop))
    order(shop, "copy", f"written {what}")
    wait_for_rows(shop, insert(shop), "other")
    wait_for_capture(shop)
    wait_for_target(shop, "copy", lambda t: t["process"]["ends"][cause], "its end")
    assert [e for e in shop.events("delivery process ended") if e["cause"] == cause and e["target"] == "copy"]
    (shop.folder / "copy.order").unlink(missing_ok=True)
    wait_for_rows(shop, insert(shop))
    wait_for_target(shop, "copy", lambda t: not t["is_failing"], "no failure")
    shop.end()


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
def test_killed_daemon_takes_its_delivery_processes_along(shop: Shop, step: str) -> None:
    """They would keep the targets from the next daemon. Whatever they did, the next ones continue at the places."""
    shop.start()
    wait_for_rows(shop, insert(shop))
    pids = [process_of(shop, name)["pid"] for name in NAMES]
    order(shop, "copy", f"{step} stop")
    insert(shop)
    wait_until(lambda: not (shop.folder / "copy.order").exists(), f"the step {step}")
    shop.kill()
    for pid in pids:
        wait_until_ended(pid)
    shop.start()
    wait_for_rows(shop, insert(shop))
    shop.end()


@pytest.mark.long
def test_deliverer_that_waits_continues_when_the_other_one_ends(shop: Shop) -> None:
    """A service that ran `cdcflow deliver` next to `cdcflow run` before an upgrade keeps working."""
    shop.start("--no-deliver")
    rows_now = insert(shop)
    wait_for_capture(shop)
    assert "process" not in shop.ask("status")["targets"]["copy"]
    wait_until(lambda: said("deliver", "--once") == "" and len(rows(shop, "copy")) > rows_now, "the rows")
    status = wait_for_target(shop, "copy", lambda t: t.get("behind_rows") == 0, "what the command wrote")
    assert "ended_at" in status
    shop.end()
    with (shop.folder / "deliver.log").open("wb") as file:
        command = [sys.executable, "-m", "cdcflow.cli", "deliver"]
        deliverer = subprocess.Popen(command, cwd=shop.folder, stdout=file, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: (shop.folder / "log" / "targets" / "copy.lock").exists(), "the lock")
            shop.start()
            found = wait_for_target(shop, "copy", lambda t: t["process"]["state"] == "waiting", "its turn")
            assert f"process {deliverer.pid}" in found["process"]["step"]
            assert not found["is_failing"]
            deliverer.send_signal(signal.SIGTERM)
            assert deliverer.wait(60) == 0
        finally:
            deliverer.kill()
            deliverer.wait()
    wait_for_rows(shop, insert(shop))
    wait_for_target(shop, "copy", lambda t: t["process"]["state"] in ("idle", "delivering"), "its deliveries")
    shop.end()

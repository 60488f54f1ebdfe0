"""`cdcflow run` merges in a separate process: whatever happens to it, the capture continues and the tables catch up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import PostgresServer
from tests.support.daemon.running_shop import Shop, planned, said
from tests.support.polling import wait_until

import cdcflow
from cdcflow import local
from cdcflow.daemon.child_process import list_tree
from cdcflow.errors import CdcflowError, SinkUnavailable
from cdcflow.log.files.layout import Layout

pytestmark = pytest.mark.postgres
JAVA_BYTES = 150_000_000


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    database = postgres.create_database("shop")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    monkeypatch.chdir(tmp_path)
    made = Shop(tmp_path, database)
    made.rest["log"]["seal"] = {"age_max": "200ms"}
    made.rest["merge"] = {"engine": "local", "warehouse": "lake", "every": "200ms"}
    made.write()
    yield made
    made.kill()
    database.drop()


def insert(shop: Shop) -> int:
    """Add a row; return how many there are."""
    shop.database.execute("INSERT INTO orders SELECT max(id) + 1 FROM orders")
    return int(shop.database.execute("SELECT count(*) FROM orders")[0][0])


def rows_merged(warehouse: Path) -> int:
    """How many rows the published cut shows."""
    with contextlib.suppress(CdcflowError):
        return int(local.read_cut(warehouse)["public.orders"].num_rows)
    return 0


def wait_for_tables(shop: Shop, rows: int, warehouse: str = "lake") -> None:
    place = shop.folder / warehouse
    enough = lambda: rows_merged(place) >= rows  # noqa: E731
    wait_until(enough, f"{rows} rows in {warehouse}", patience_s=180, more=shop.output.read_text)


def wait_for_capture(shop: Shop) -> None:
    """Wait until the log has all that is in the database now."""
    position = shop.ask("status")["durable_offset"]
    insert(shop)
    shop.wait_until(lambda s: s["state"] == "capturing" and s["durable_offset"] > position, "the capture")


def wait_for_merge(shop: Shop, wished: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
    """The status of the merge process, once it is as wished."""
    found = shop.wait_until(lambda s: bool(wished((s.get("merge") or {}).get("process") or {})), what)
    return dict(found["merge"]["process"])


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_until_ended(pid: int) -> None:
    wait_until(lambda: not is_running(pid), f"process {pid} to end")


def test_one_process_merges_what_it_captures_and_ends_with_its_merges(shop: Shop) -> None:
    """What a user starts once has to be stopped once; a merge that was left alone would keep the warehouse."""
    shop.start()
    wait_for_tables(shop, insert(shop))
    process = wait_for_merge(
        shop, lambda p: p.get("state") == "idle" and p.get("memory_bytes"), "an idle merge process"
    )
    assert process["every_seconds"] == 0.2
    assert process["failing"] is None
    assert not any(process["ends"].values())
    assert shop.daemon is not None
    assert os.getpriority(os.PRIO_PROCESS, process["pid"]) > os.getpriority(os.PRIO_PROCESS, shop.daemon.pid)
    arguments = Path(f"/proc/{process['pid']}/cmdline").read_bytes()
    environment = Path(f"/proc/{process['pid']}/environ").read_bytes()
    assert str(shop.folder).encode() not in arguments
    assert b"postgresql://" not in arguments + environment
    text = said("status")
    assert "merging every 0.2 s" in text
    # A merge by hand waits for its turn, and knows why.
    assert "cut" in said("merge", "--once")
    shop.end()
    assert not is_running(process["pid"])
    assert rows_merged(shop.folder / "lake") == 2
    assert shop.events("tables are merged")


@pytest.mark.long
def test_published_cuts_reach_a_file_and_again_after_the_process_was_killed(shop: Shop) -> None:
    """A job that waits for rows must not wait for the next change because a process was killed at the wrong time."""
    file = shop.folder / "latest.json"
    shop.rest["service"] = {"notify": [{"on": ["cut_published"], "file": "latest.json"}]}
    shop.write()
    shop.start()
    wait_for_tables(shop, insert(shop))

    def latest() -> dict[str, Any]:
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def newest() -> int:
        with contextlib.closing(local.local_engine(shop.folder / "lake", "delta")) as engine:
            return engine.cuts().list_cuts()[-1].cut

    wait_until(lambda: latest().get("cut") == newest(), "the latest cut in the file", more=shop.output.read_text)
    assert [one["name"] for one in latest()["tables"]] == ["public.orders"]
    assert latest()["warehouse"] == str(shop.folder / "lake")
    file.unlink()
    os.kill(wait_for_merge(shop, lambda p: p.get("state") == "idle", "an idle merge process")["pid"], signal.SIGKILL)
    wait_until(lambda: latest().get("cut") == newest(), "the same cut, sent again", more=shop.output.read_text)
    assert "rows" not in latest()
    wait_for_tables(shop, insert(shop))
    wait_until(lambda: latest().get("rows") == 1, "the next cut", more=shop.output.read_text)
    shop.end()


@pytest.mark.long
def test_rows_are_sealed_for_a_merge_that_waits_and_only_for_it(shop: Shop) -> None:
    """`seal.age_max` would be most of the age of a table's rows, and a segment for each commit would wear out the log.
    A merge process that hangs must not have anything sealed."""
    shop.rest["log"]["seal"] = {"age_max": "1h"}
    shop.write()
    shop.start()
    for _ in range(3):
        wait_for_tables(shop, insert(shop))
    before = wait_for_merge(shop, lambda p: p.get("state") == "idle", "an idle merge process")
    os.kill(before["pid"], signal.SIGSTOP)
    for _ in range(5):
        wait_for_capture(shop)
    # It waited when it was stopped, so it got one segment.
    segments = Layout(shop.folder / "log").segment_offsets()
    with contextlib.closing(local.local_engine(shop.folder / "lake", "delta")) as engine:
        assert len(segments) <= len(engine.cuts().list_cuts()) + 1
    os.kill(before["pid"], signal.SIGCONT)
    wait_for_tables(shop, insert(shop))
    shop.end()


@pytest.mark.spread(1)
@pytest.mark.parametrize("live", [False, True])
def test_answers_have_what_was_written_before_the_question(shop: Shop, live: bool) -> None:
    """A program writes, and queries the tables with the position of its write. It waits for that, and no longer: also
    where no captured table changed since."""
    shop.start()
    wait_for_tables(shop, insert(shop))

    def position() -> str:
        return str(shop.database.execute("SELECT pg_current_wal_lsn()")[0][0])

    def count(at_least: str, wait_s: float = 60) -> int:
        asked = cdcflow.sql("SELECT count(*) FROM orders", live=live, at_least=at_least, wait_s=wait_s)
        return int(asked.rows.column(0)[0].as_py())

    for _ in range(5):
        rows = insert(shop)
        assert count(position()) == rows
    shop.database.execute("CREATE TABLE elsewhere AS SELECT generate_series(1, 1000) AS n")
    assert count(position()) == rows
    with pytest.raises(SinkUnavailable, match="did not reach position FFFF/0"):
        count("FFFF/0", wait_s=0.3)
    shop.end()


@pytest.mark.parametrize("cause", ["killed", pytest.param("silent", marks=pytest.mark.long)])
def test_capture_continues_while_its_merge_process_is_killed_or_stopped(shop: Shop, cause: str) -> None:
    """The kernel kills the largest process; a swapping machine stops it for minutes. The next one continues."""
    if cause == "silent":
        shop.rest["merge"]["progress_timeout"] = "8s"
        shop.write()
    shop.start()
    wait_for_tables(shop, insert(shop))
    before = wait_for_merge(shop, lambda p: p.get("state") == "idle", "an idle merge process")
    os.kill(before["pid"], signal.SIGKILL if cause == "killed" else signal.SIGSTOP)
    wait_for_capture(shop)
    after = wait_for_merge(
        shop, lambda p: p["ends"][cause] and p.get("pid") not in (None, before["pid"]), "another one"
    )
    assert after["pid"] != before["pid"]
    wait_until_ended(before["pid"])
    wait_for_tables(shop, insert(shop))
    wait_for_merge(shop, lambda p: p.get("failing") is None, "the end of the trouble")
    assert [e for e in shop.events("merge process ended") if e["cause"] == cause]
    shop.end()


@pytest.mark.long
def test_merge_process_with_too_much_memory_is_ended_until_the_settings_allow_more(shop: Shop) -> None:
    """Without a bound the kernel would choose what to end: the capture, or the database."""
    shop.rest["merge"]["memory_max"] = "1MiB"
    shop.write()
    shop.start()
    failing = wait_for_merge(shop, lambda p: (p.get("failing") or {}).get("cause") == "memory", "the reason")["failing"]
    assert "may have 1 MB" in failing["reason"]
    assert "merge.memory_max" in failing["remedy"]
    wait_until(lambda: "may have 1 MB" in said("status"), "the reason in the status")  # each process has another size
    wait_for_capture(shop)
    shop.rest["merge"] |= {"memory_max": "4GiB", "progress_timeout": "10m"}
    shop.write()
    plan = planned()
    changed = {change["name"]: change["taken"] for change in plan["settings"]}
    assert changed == {"merge.memory_max": "running", "merge.progress_timeout": "running"}
    assert plan["merging"]
    said("apply", "--yes")
    wait_for_tables(shop, insert(shop))
    process = wait_for_merge(shop, lambda p: p.get("failing") is None, "no failure")
    assert (process["memory_bytes_max"], process["progress_timeout_seconds"]) == (4 << 30, 600)
    shop.end()


@pytest.mark.long
def test_merge_that_fails_each_time_is_reported_and_its_settings_can_be_changed(shop: Shop) -> None:
    """A warehouse that cannot be written is no reason to lose changes."""
    (shop.folder / "lake").write_text("not a folder")
    shop.start()
    wait_for_merge(shop, lambda p: p["ends"]["failed"] >= 2, "two failures")
    wait_for_capture(shop)
    status = shop.ask("status")
    assert status["merge"]["failed"]
    assert "lake" in status["merge"]["process"]["failing"]["reason"]
    assert "lake" in said("status")
    shop.rest["merge"]["warehouse"] = "pond"
    shop.write()
    said("apply", "--yes")
    wait_for_tables(shop, insert(shop), "pond")
    assert len(shop.events("merge failed")) == 1, "a reason that stays is written once"
    del shop.rest["merge"]["every"]
    shop.write()
    said("apply", "--yes")
    shop.wait_until(lambda s: "process" not in s["merge"], "the end of merges")
    shop.end()


def test_killed_daemon_takes_its_merge_process_along(shop: Shop) -> None:
    """It would keep the warehouse's lock, and the next daemon's merges would wait for it."""
    shop.start()
    pid = wait_for_merge(shop, lambda p: p.get("state") == "idle", "an idle merge process")["pid"]
    os.kill(pid, signal.SIGSTOP)
    shop.kill()
    wait_until_ended(pid)
    shop.start()
    wait_for_tables(shop, insert(shop))
    shop.end()


def test_another_process_can_merge_instead(shop: Shop) -> None:
    """Services that ran `cdcflow merge` next to `cdcflow run` before an upgrade must keep working."""
    shop.start("--no-merge")
    rows = insert(shop)
    assert "process" not in (shop.ask("status").get("merge") or {})
    wait_until(lambda: "cut" in said("merge", "--once") and rows_merged(shop.folder / "lake") >= rows, "the rows")
    shop.end()


@pytest.mark.long
def test_spark_stays_started_between_merges_and_ends_with_the_daemon(shop: Shop) -> None:
    """Its start takes most of a small merge's time; and a Java that is left alone keeps its memory."""
    shop.rest["merge"]["engine"] = "spark"
    shop.write()
    shop.start()
    wait_for_tables(shop, insert(shop))
    pid = wait_for_merge(shop, lambda p: p.get("state") == "idle", "an idle merge process")["pid"]
    started = list_tree(pid)
    assert len(started) > 1
    wait_for_tables(shop, insert(shop))
    process = wait_for_merge(shop, lambda p: p.get("memory_bytes", 0) > JAVA_BYTES, "the memory of Java to count")
    assert process["pid"] == pid
    assert set(started[:2]) <= set(list_tree(pid))
    # A session whose Java has ended is of no use: the next process has a new one.
    os.kill(started[1], signal.SIGKILL)
    wait_for_merge(shop, lambda p: p.get("pid") not in (None, pid), "a new process")
    wait_for_tables(shop, insert(shop))
    running = list_tree(wait_for_merge(shop, lambda p: p.get("state") == "idle", "an idle merge process")["pid"])
    shop.end()
    for one in running:
        wait_until_ended(one)

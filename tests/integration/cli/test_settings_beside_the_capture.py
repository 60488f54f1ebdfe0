"""The components next to a capture apply new settings while the daemon runs, or the file is refused with the reason."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.servers.http_threads import PostReceiver
from tests.servers.postgres import PostgresServer
from tests.support.daemon.running_shop import Shop, planned, said
from tests.support.polling import AtIntervals, wait_until

from cdcflow.config import Objects
from cdcflow.log.files import notes
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.read.reader import check, read_rows

pytestmark = pytest.mark.postgres
CANARY = "c4n4ry-of-sixteen-characters"


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def here(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    database = postgres.create_database("shop")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPS", CANARY)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    made = Shop(tmp_path, database)
    yield made
    made.kill()
    database.drop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def asked(port: int, path: str, *, method: str = "GET", token: str | None = None) -> int | None:
    """The answer's code; `None` if the port is closed."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body="{}" if method == "POST" else None, headers=headers)
        return connection.getresponse().status
    except ConnectionRefusedError:
        return None
    finally:
        connection.close()


def is_closed(port: int) -> bool:
    with contextlib.suppress(ConnectionResetError):  # it was accepted just before the server closed
        return asked(port, "/healthz") is None
    return False


def test_http_is_opened_moved_refused_and_closed_while_running(here: Shop) -> None:
    """It needed a restart, and a restart interrupts the capture for a token."""
    here.start()
    first, second = free_port(), free_port()
    here.rest["service"] = {"listen": f"127.0.0.1:{first}"}
    here.write()
    (change,) = planned()["settings"]
    assert (change["name"], change["taken"]) == ("service.listen", "running")
    said("apply", "--yes")
    assert asked(first, "/status") == 200
    assert not planned()["changes"]

    token = {"name": "ops", "role": "read", "token": "${env:OPS}"}
    here.rest["service"]["tokens"] = [token]
    here.write()
    said("apply", "--yes")
    assert [asked(first, "/status", token=t) for t in (None, CANARY)] == [401, 200]
    assert asked(first, "/api/v1/operations/reload", method="POST", token=CANARY) == 403

    # The port is the old server's, and the address a different one: other machines may reach it now.
    here.rest["service"] |= {"listen": f"0.0.0.0:{first}", "tokens": [{**token, "role": "operate"}]}
    here.write()
    said("apply", "--yes")
    assert asked(first, "/status", token=CANARY) == 200
    here.rest["service"]["listen"] = f"127.0.0.1:{second}"
    here.write()
    assert asked(first, "/api/v1/operations/reload", method="POST", token=CANARY) == 200, "the old server answers"
    assert asked(second, "/status", token=CANARY) == 200
    here.wait_until(lambda _: is_closed(first), "the old server to close")

    before = here.ask("status")["settings"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here.rest["service"]["listen"] = f"127.0.0.1:{taken.getsockname()[1]}"
        here.write(heartbeat="3s")
        text = said("apply", "--yes", code=78)
        assert "Address already in use" in text
        here.hang_up()
        here.wait_until(lambda _: bool(here.events("settings not taken up")), "the reason")
    assert here.events("settings not taken up")[0]["remedy"] == "choose another port, or leave service.listen out"
    assert asked(second, "/status", token=CANARY) == 200
    assert here.ask("status")["settings"] == before, "no setting of the file is applied"
    # The remedy, to the letter.
    del here.rest["service"]["listen"]
    here.write()
    said("apply", "--yes")
    here.wait_until(lambda _: is_closed(second), "the server to close")
    assert not planned()["changes"]
    here.end()


@pytest.fixture
def collector() -> Iterator[PostReceiver]:
    with PostReceiver() as made:
        yield made


def test_retention_notifications_checks_and_opentelemetry_traces_begin_while_running(
    here: Shop, collector: PostReceiver
) -> None:
    """Each runs next to the capture, and none of them needs another process."""
    here.start()
    script = f"import sys; open({str(here.folder / 'told')!r}, 'a').write(sys.stdin.read() + chr(10))"
    here.rest["log"]["retention"] = {"bytes": 1, "keep_for": [], "every": "100ms"}
    here.rest["service"] = {
        "notify": [{"on": ["stopped", "backfill_done"], "command": [sys.executable, "-c", script]}],
        "traces": collector.uri,
        "freshness_every": "2s",
        "shadow_every": "10ms",
    }
    here.write()
    found = {change["name"]: change["taken"] for change in planned()["settings"]}
    assert found["service.traces"] == "next cut"
    assert {how for name, how in found.items() if name != "service.traces"} == {"running"}
    said("apply", "--yes")
    ids = itertools.count(2)
    insert = AtIntervals(lambda: here.database.execute(f"INSERT INTO orders VALUES ({next(ids)})"))
    insert()
    collector.wait_for(lambda: collector.got)
    # Not every row can be compared: the table's statistics may have changed since it was decoded, for example.

    def is_checked(status: dict[str, Any]) -> bool:
        insert()
        return bool(status["counts"]["shadow_checks"] > 0)

    here.wait_until(is_checked, "a row to be checked")
    here.wait_until(lambda _: bool(here.events("log expired")), "the oldest segment to go")
    here.end()
    told = [json.loads(line)["event"] for line in (here.folder / "told").read_text().splitlines()]
    assert told == ["stopped"], "what was read before is no news"


def page(port: int, path: str, host: str = "localhost") -> tuple[int, str]:
    """The answer's code and text to a request that names a host."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_log_and_service_settings_apply_while_running(here: Shop, objects: Objects) -> None:
    """The index of keys did not change until a restart, though the plan said that it would change at once."""
    port, layout = free_port(), Layout(here.folder / "log")
    here.rest["log"] |= {"index": False, "seal": {"age_max": "1h"}}
    here.rest["service"] = {"listen": f"127.0.0.1:{port}", "freshness_every": "1h"}
    here.write()
    here.start()
    assert not layout.segment_offsets()
    store = {k: v for k, v in objects.model_dump(mode="json").items() if v is not None}
    here.rest["log"] |= {"seal": {"age_max": "1s"}, "objects": store}
    here.write()
    assert {change["taken"] for change in planned()["settings"]} == {"next cut"}
    said("apply", "--yes")
    here.wait_until(lambda s: s["settings"]["number"] == 2, "the capture with these settings")
    here.database.execute("INSERT INTO orders VALUES (2)")
    here.wait_until(lambda s: int(s.get("upload_offset") or 0) > 0, "a sealed segment in the store")
    assert Indexing(layout).last_offset == 0
    assert page(port, "/status", "cdc.internal")[0] == 421
    assert 'table="public.orders"' in page(port, "/metrics")[1]

    here.rest["log"]["index"] = True
    here.rest["service"] |= {"hosts": ["cdc.internal"], "metrics_per_table": "never", "freshness_every": "200ms"}
    here.write()
    assert {change["taken"] for change in planned()["settings"]} == {"running"}
    said("apply", "--yes")
    here.wait_until(lambda _: Indexing(layout).last_offset > 0, "the keys to be indexed")
    here.wait_until(lambda _: page(port, "/status", "cdc.internal")[0] == 200, "the host's name to be known")
    assert 'table="public.orders"' not in page(port, "/metrics")[1]
    proofs: set[float] = set()  # each attempt begins with one

    def has_many(status: dict[str, Any]) -> bool:
        proofs.add(status["tables"]["public.orders"]["fresh_as_of"])
        return len(proofs) > 2

    here.wait_until(has_many, "further proofs of freshness")
    assert here.ask("status")["counts"]["attempts"] == 2, "only settings of the log end an attempt"
    here.end()


def _has_segments(layout: Layout, count: int) -> bool:
    return len(layout.segment_offsets()) >= count


def test_small_segments_are_joined_once_the_settings_allow_it(here: Shop) -> None:
    """The daemon joins what every merge has read, next to the capture, and every row stays at its offset."""
    layout = Layout(here.folder / "log")
    here.rest["log"] |= {"compact": False, "seal": {"age_max": "50ms"}}
    here.write()
    here.start()
    for number in range(2, 14):
        wanted = len(layout.segment_offsets()) + 1
        here.database.execute(f"INSERT INTO orders VALUES ({number})")
        wait_until(partial(_has_segments, layout, wanted), "a sealed segment")
    before = layout.segment_offsets()
    notes.write(layout, notes.Note("merge", "/warehouse", before[-1][1]))
    here.rest["log"]["compact"] = True
    here.write()
    assert {change["taken"] for change in planned()["settings"]} == {"running"}
    said("apply", "--yes")
    here.wait_until(lambda _: bool(here.events("log compacted")), "small segments to be joined")
    assert len(layout.segment_offsets()) < len(before) - 6
    assert here.ask("status")["counts"]["attempts"] == 1
    here.end()
    assert check(layout, deep=True).faults == ()
    found = [row["id"] for _, _, rows in read_rows(layout) for row in rows.to_pylist()]
    assert sorted(found) == list(range(1, 14))


def test_a_stop_during_a_pause_is_in_the_log_once_it_is_open_again(here: Shop) -> None:
    """Neither the daemon that was stopped nor one that waits has the log."""
    here.start()
    here.ask("pause-capture")
    here.wait_until(lambda s: s["state"] == "paused", "the pause")
    here.ask("stop")
    assert here.daemon is not None
    assert here.daemon.wait(60) == 0
    assert (here.folder / "log" / "late.json").exists()
    here.start()
    assert here.ask("resume-capture")["durable"]
    here.wait_until(lambda _: not (here.folder / "log" / "late.json").exists(), "the audit record to be in the log")
    here.end()
    traces = [(one["op"], one["outcomes"]) for one in json.loads(said("log", "commands", "--json"))]
    assert traces == [
        ("pause-capture", {"capture": "paused"}),
        ("stop", {"capture": "stopping"}),
        ("resume-capture", {"capture": "resumed"}),
    ]

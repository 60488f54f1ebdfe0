"""Consumers over HTTP: long poll, events, commits, and who may do which."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.polling import wait_until
from tests.unit.daemon.test_http_api import CONSUME, JSON, OPERATE, READ, ask, token

import cdcflow
from cdcflow.daemon.interfaces.http_server import HttpServer
from cdcflow.http.access import Access
from cdcflow.http.consumers import ConsumerDoor
from cdcflow.log.query import consumer

ORDERS = make_table("orders", id="int64", v="string")
CHANGES = "/api/v1/consumers/shop/changes"


@pytest.fixture
def log(tmp_path: Path) -> HandLog:
    """Two rows, and a transaction of three."""
    made = HandLog(tmp_path / "log", has_transactions=True)
    made.state(ORDERS)
    made.segment([(ORDERS, "r", {"id": n, "v": "a", "_txn": 1}) for n in (1, 2)])
    return made


def written(log: HandLog, *ids: int, number: int) -> None:
    log.segment([(ORDERS, "c", {"id": n, "v": "b", "_txn": number}) for n in ids])


@pytest.fixture
def events() -> list[tuple[str, dict[str, object]]]:
    """The events that the daemon logs."""
    return []


@pytest.fixture
def server(
    log: HandLog, events: list[tuple[str, dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[HttpServer]:
    monkeypatch.setenv("READ_TOKEN", READ)
    monkeypatch.setenv("CONSUME_TOKEN", CONSUME)
    monkeypatch.setenv("OPERATE_TOKEN", OPERATE)
    tokens = [token("dashboard", "read", "READ_TOKEN"), token("search", "consume", "CONSUME_TOKEN")]
    tokens.append(token("ops", "operate", "OPERATE_TOKEN"))
    opened = cdcflow.open(log.root).consumers()
    door = ConsumerDoor(lambda: opened, lambda event, fields: events.append((event, dict(fields))))
    made = HttpServer("127.0.0.1:0", dict, access=Access(tokens), consumers=door)
    made.start()
    yield made
    made.close()


def create(server: HttpServer, **asked: Any) -> Any:
    answer = ask(server, "POST", "/api/v1/consumers", {"name": "shop", **asked}, token=OPERATE, headers=JSON)
    assert answer.code == 200, answer.text
    return answer.json


def polled(server: HttpServer, query: str = "") -> Any:
    answer = ask(server, "GET", CHANGES + query, token=READ)
    assert answer.code == 200, answer.text
    return answer.json


def commit(server: HttpServer, cursor: str) -> Any:
    return ask(server, "POST", "/api/v1/consumers/shop/commit", {"cursor": cursor}, token=CONSUME, headers=JSON)


def test_poll_returns_rows_then_changes_and_a_commit_advances(server: HttpServer, log: HandLog) -> None:
    """Uncommitted changes are sent again; a cursor that the reader stores itself works as well."""
    create(server, tables=["public.orders"])
    first = polled(server)
    assert [(c["op"], c["values"], c["backfill"]) for c in first["changes"]] == [
        ("r", {"id": 1, "v": "a"}, True),
        ("r", {"id": 2, "v": "a"}, True),
    ]
    assert polled(server) == first
    assert polled(server, f"?after={first['changes'][0]['cursor']}")["changes"] == first["changes"][1:]
    assert commit(server, first["cursor"]).code == 200
    written(log, 3, number=2)
    second = polled(server)
    assert [(c["op"], c["values"]["id"], c["backfill"]) for c in second["changes"]] == [("c", 3, False)]
    again = polled(server, f"?after={second['cursor']}")
    assert (again["changes"], again["cursor"]) == ([], second["cursor"])
    listed = ask(server, "GET", "/api/v1/consumers", token=READ).json["consumers"]
    assert [(one["name"], one["state"], one["behind_rows"]) for one in listed] == [("shop", "changes", 1)]


def test_rows_of_a_table_are_folded_once_for_all_polls(
    server: HttpServer, log: HandLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table in answers of 500 rows must not be folded again for each answer; nor be kept when no client
    polls."""
    made: list[object] = []
    right = consumer._rows_of

    def counted(*given: Any) -> Any:
        made.append(given)
        return right(*given)

    monkeypatch.setattr(consumer, "_rows_of", counted)
    create(server)
    first = polled(server, "?limit=1")
    second = polled(server, f"?limit=1&after={first['cursor']}")
    assert [c["values"]["id"] for one in (first, second) for c in one["changes"]] == [1, 2]
    assert len(made) == 1
    monkeypatch.setattr("cdcflow.http.consumers.REST_AFTER_S", 0.01)
    wait_until(lambda: polled(server) and len(made) == 2, "the rows to be folded again")


def test_answer_ends_where_a_transaction_ends(server: HttpServer, log: HandLog) -> None:
    """A reader that stores each answer as a whole never shows half a transaction, however small the limit."""
    create(server, **{"from": "now"})
    written(log, 3, 4, 5, number=2)
    written(log, 6, number=3)
    found = polled(server, "?limit=2")
    assert [c["values"]["id"] for c in found["changes"]] == [3, 4, 5]
    assert [c["values"]["id"] for c in polled(server, f"?limit=2&after={found['cursor']}")["changes"]] == [6]


def test_poll_waits_for_the_next_changes(server: HttpServer, log: HandLog) -> None:
    """A long poll: no request every second for changes that arrive once an hour."""
    create(server, **{"from": "now"})
    writer = threading.Timer(0.5, lambda: written(log, 3, number=2))
    writer.start()
    assert [c["values"]["id"] for c in polled(server, "?wait=30")["changes"]] == [3]
    writer.join()
    assert ask(server, "GET", CHANGES + "?wait=61", token=READ).code == 400


def test_stream_has_cursors_as_event_ids_and_resumes_after_one(server: HttpServer, log: HandLog) -> None:
    """A browser's EventSource reconnects by itself with Last-Event-ID; commits are sent in separate requests."""
    create(server)
    events = Stream(server)
    first, second = events.next(), events.next()
    assert (first["data"]["values"]["id"], second["data"]["values"]["id"]) == (1, 2)
    assert first["id"] == first["data"]["cursor"]
    busy = ask(server, "GET", CHANGES, token=READ)
    assert busy.code == 503
    assert "has one reader at a time" in busy.json["detail"]
    assert "process" in busy.json["detail"]
    written(log, 3, number=2)
    assert events.next()["data"]["op"] == "c"
    assert commit(server, second["id"]).code == 200
    events.close()
    resumed = Stream(server, **{"Last-Event-ID": first["id"]})
    assert resumed.next()["data"]["values"]["id"] == 2
    resumed.close()


def test_each_role_may_do_what_the_ones_before_it_may(server: HttpServer) -> None:
    """A dashboard that reads values must not move the cursor of a program: that program would lose rows."""
    create(server)
    cursor = {"cursor": polled(server)["cursor"]}
    path = "/api/v1/consumers/shop/commit"
    codes = [ask(server, "POST", path, cursor, token=t, headers=JSON).code for t in (READ, CONSUME, OPERATE)]
    assert codes == [403, 200, 200]
    denied = ask(server, "POST", path, cursor, token=READ, headers=JSON).json["detail"]
    assert denied == "a commit needs a token with the role consume; dashboard has the role read"
    assert ask(server, "GET", CHANGES, token=CONSUME).code == 200
    made = ask(server, "POST", "/api/v1/consumers", {"name": "other"}, token=CONSUME, headers=JSON)
    assert (made.code, "role operate; search has the role consume" in made.json["detail"]) == (403, True)


def test_daemon_logs_which_token_created_a_consumer(
    server: HttpServer, events: list[tuple[str, dict[str, object]]]
) -> None:
    """The log is kept for it, and an operator may ask why."""
    create(server)
    assert events == [("operation requested", {"op": "create consumer", "consumer": "shop", "by": "HTTP, token ops"})]


def test_rights(server: HttpServer) -> None:
    """Values need a token, as everywhere."""
    assert ask(server, "GET", CHANGES).code == 401
    assert ask(server, "GET", "/api/v1/consumers").code == 401
    denied = ask(server, "POST", "/api/v1/consumers", {"name": "shop"}, token=READ, headers=JSON)
    assert (denied.code, "role operate" in denied.json["detail"]) == (403, True)
    assert ask(server, "POST", "/api/v1/consumers/shop/commit", {"cursor": "x"}, headers=JSON).code == 401
    assert ask(server, "POST", "/api/v1/consumers", {"name": "shop"}, token=OPERATE).code == 415


def test_without_tokens_nothing_can_be_committed_or_made(log: HandLog) -> None:
    """The service without tokens is read-only."""
    door = ConsumerDoor(lambda: cdcflow.open(log.root).consumers())
    made = HttpServer("127.0.0.1:0", dict, consumers=door)
    made.start()
    try:
        assert ask(made, "POST", "/api/v1/consumers", {"name": "shop"}, headers=JSON).code == 403
        assert ask(made, "POST", "/api/v1/consumers/shop/commit", {"cursor": "x"}, headers=JSON).code == 403
        assert ask(made, "GET", CHANGES).json["remedy"] == "create it: `cdcflow consumer create shop`"
    finally:
        made.close()


@pytest.mark.parametrize(
    "asked", [{"name": 1}, {"name": "a/b"}, {"tables": "public.orders"}, {"where": "x"}, {"ops": "cx"}, {"tables": []}]
)
def test_invalid_consumer_request_is_refused(server: HttpServer, asked: Any) -> None:
    """By what is wrong with it, and with what to send."""
    answer = ask(server, "POST", "/api/v1/consumers", {"name": "shop", **asked}, token=OPERATE, headers=JSON)
    assert answer.code == 400
    assert answer.json["remedy"]


class Stream:
    """Server-sent events of the consumer."""

    def __init__(self, server: HttpServer, **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        sent = {"Host": f"localhost:{server.port}", "Authorization": f"Bearer {READ}", "Accept": "text/event-stream"}
        self._connection.request("GET", CHANGES, headers={**sent, **headers})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        assert self._answer.headers["Content-Type"].startswith("text/event-stream")

    def next(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while True:
            line = self._answer.readline().decode().rstrip("\n")
            if line.startswith(":"):
                continue
            if not line:
                if found:
                    return found
                continue
            name, _, text = line.partition(": ")
            found[name] = json.loads(text) if name == "data" else text

    def close(self) -> None:
        self._answer.close()
        self._connection.close()

"""The HTTP API of collections: who may write, and what is answered."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator
from tests.support.push.collections import Pushed, asked, table

import cdcflow
from cdcflow.config import AccessToken, Role
from cdcflow.daemon.interfaces.http_server import HttpServer
from cdcflow.http.access import Access
from cdcflow.http.connection import PromptConnection
from cdcflow.http.consumers import ConsumerDoor
from cdcflow.http.explorer import Explorer
from cdcflow.log.read.folder import FolderReader
from cdcflow.push.columns import CONTENT_TYPE
from cdcflow.push.metrics import LISTED
from cdcflow.push.web import PushInterfaces, application

READ, OPERATE = "r" * 24, "o" * 24
ORDERS = "/api/v1/collections/orders"
PUT = {"op": "put", "value": {"id": 1, "note": "a", "hits": 1}}


class Api:
    """A client of one server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, method: str, path: str, body: Any = None, token: str | None = OPERATE, **headers: str
    ) -> tuple[int, Any, Mapping[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named.setdefault("Content-Type", "application/json")
        if token is not None:
            named["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body), named)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, json.loads(text) if text.startswith("{") else text, dict(answer.headers)


@pytest.fixture
def pushed(tmp_path: Path) -> Iterator[Pushed]:
    made = Pushed(tmp_path / "log")
    yield made
    made.stop()


@pytest.fixture
def api(pushed: Pushed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("READ_TOKEN", READ)
    monkeypatch.setenv("OPERATE_TOKEN", OPERATE)
    tokens = [token("reader", "read", "READ_TOKEN"), token("shop", "operate", "OPERATE_TOKEN")]
    access = Access(tokens, setting="serve.tokens")
    server = serving(pushed, access)
    yield Api(server.port)
    server.close()


def token(name: str, role: Role, variable: str) -> AccessToken:
    return AccessToken(name=name, role=role, token=f"${{env:{variable}}}")


def serving(pushed: Pushed, access: Access) -> HttpServer:
    explorer = Explorer(lambda: FolderReader(pushed.folder), asked=lambda: asked(pushed.folder))
    door = ConsumerDoor(lambda: cdcflow.open(pushed.folder).consumers())
    doors = PushInterfaces({"orders": pushed.shape}, pushed.writer, access, explorer, door, 1 << 16)
    made = HttpServer("127.0.0.1:0", dict, access=access, application=lambda names: application(doors, names))
    made.start()
    return made


def test_answers_are_not_held_back_by_the_network(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Head and body of an answer are written one after the other: without this each answer takes 40 ms."""
    seen: list[int] = []
    received = PromptConnection.data_received

    def data_received(connection: PromptConnection, data: bytes) -> None:
        here = connection.transport.get_extra_info("socket")
        seen.append(here.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        received(connection, data)

    monkeypatch.setattr(PromptConnection, "data_received", data_received)
    assert api.ask("GET", "/healthz")[0] == 200
    assert seen
    assert all(seen)


def test_what_was_answered_is_read_back(api: Api) -> None:
    """A program reads its own writes, also as of the time before one."""
    code, first, _ = api.ask("POST", ORDERS, PUT)
    assert (code, first["first_offset"]) == (200, 1)
    api.ask("POST", ORDERS, {"op": "increment", "key": 1, "value": {"hits": 4}})
    code, row, _ = api.ask("GET", "/api/v1/row?table=push.orders&key=1", token=READ)
    assert (code, row["values"]["hits"]) == (200, "5")
    _, before, _ = api.ask("GET", "/api/v1/row?table=push.orders&key=1&as_of=1", token=READ)
    assert before["values"]["hits"] == "1"
    _, changes, _ = api.ask("GET", "/api/v1/changes?table=push.orders", token=READ)
    assert [one["op"] for one in changes["changes"]] == ["u", "c"]
    _, listed, _ = api.ask("GET", "/api/v1/collections", token=READ)
    assert listed["collections"][0]["columns"]["id"] == "int64"
    assert listed["offset"] == 2


def test_pushed_rows_are_queried_like_any_log(api: Api) -> None:
    """The history of a row, the difference between two points in time, and the other rows of a transaction."""
    api.ask("POST", ORDERS, PUT)
    _, second, _ = api.ask("POST", ORDERS, [{"op": "delete", "key": 1}, {"op": "put", "value": {"id": 2}}])
    _, history, _ = api.ask("GET", "/api/v1/row/history?table=push.orders&key=1", token=READ)
    assert [one["op"] for one in history["changes"]] == ["d", "c"]
    _, found, _ = api.ask("GET", "/api/v1/differences?table=push.orders&first=1", token=READ)
    assert sorted((one["change"], one["key"]) for one in found["rows"]) == [("added", ["2"]), ("removed", ["1"])]
    _, transaction, _ = api.ask("GET", f"/api/v1/transactions/{second['transaction']}?values=true", token=READ)
    assert [one["op"] for one in transaction["changes"]] == ["d", "c"]
    assert api.ask("GET", "/api/v1/row?key=1", token=READ)[0] == 400


def test_consumer_gets_the_pushed_rows(api: Api) -> None:
    """Long polls with a cursor; only a token that may operate creates a consumer."""
    api.ask("POST", ORDERS, PUT)
    wanted = {"name": "search", "tables": ["push.orders"]}
    assert api.ask("POST", "/api/v1/consumers", wanted, token=READ)[0] == 403
    assert api.ask("POST", "/api/v1/consumers", wanted)[0] == 200
    _, first, _ = api.ask("GET", "/api/v1/consumers/search/changes?wait=20", token=READ)
    assert [(one["op"], one["values"]["note"]) for one in first["changes"]] == [("r", "a")]
    api.ask("POST", "/api/v1/consumers/search/commit", {"cursor": first["cursor"]})
    api.ask("POST", ORDERS, {"op": "put", "value": {"id": 1, "note": "b"}})
    _, second, _ = api.ask("GET", "/api/v1/consumers/search/changes?wait=20", token=READ)
    assert [(one["op"], one["values"]["note"]) for one in second["changes"]] == [("u", "b")]


def test_metrics_count_what_was_answered(api: Api) -> None:
    """Open to all, as those of the daemon: they have no values."""
    api.ask("POST", ORDERS, PUT, Idempotency_Key="one")
    api.ask("POST", ORDERS, PUT, Idempotency_Key="one")
    api.ask("POST", ORDERS, {"op": "increment", "key": 7, "value": {"hits": 1}})
    code, text, _ = api.ask("GET", "/metrics", token=None)
    assert code == 200
    for line in (
        'cdcflow_serve_requests_total{answer="written"} 1.0',
        'cdcflow_serve_requests_total{answer="again"} 1.0',
        'cdcflow_serve_requests_total{answer="refused"} 1.0',
        "cdcflow_serve_transactions_total 1.0",
        "cdcflow_serve_rows_total 2.0",
        "cdcflow_serve_offset 2.0",
        "cdcflow_serve_waiting_bytes 0.0",
    ):
        assert line in text.splitlines()


def test_every_metric_is_in_the_docs() -> None:
    """An operator who writes an alert searches there."""
    page = (Path(__file__).parents[3] / "docs" / "serve.md").read_text()
    for metric, _ in LISTED:
        assert f"`{metric.full_name}`" in page


def test_description_has_every_path(api: Api, pushed: Pushed) -> None:
    """No client can be generated for a path that it misses; and what a collection accepts is its schema."""
    code, found, _ = api.ask("GET", "/api/v1/openapi.json", token=READ)
    assert code == 200
    explorer = Explorer(lambda: FolderReader(pushed.folder))
    door = ConsumerDoor(lambda: cdcflow.open(pushed.folder).consumers())
    app: Any = application(PushInterfaces({"orders": pushed.shape}, pushed.writer, Access(), explorer, door, 1), ())
    routes = {
        route.path.replace(":int", "").replace("collections/{name}", "collections/orders") for route in app._app.routes
    }
    assert routes == set(found["paths"])
    body = found["paths"][ORDERS]["post"]["requestBody"]["content"]["application/json"]["schema"]
    Draft202012Validator.check_schema(body)
    takes = Draft202012Validator(body).is_valid
    increment = {"op": "increment", "key": {"id": 1}, "value": {"hits": 1}}
    assert all(map(takes, (PUT, [PUT, {"op": "delete", "key": 1}], increment)))
    assert not any(map(takes, ({"op": "put", "value": {"note": "a"}}, {"op": "put"}, [], {**PUT, "more": 1})))


@pytest.mark.parametrize(
    ("token", "code", "said"),
    [
        (None, 401, "needs a token"),
        ("x" * 24, 401, "needs a token"),
        (READ, 403, "the role operate; reader has the role"),
    ],
)
def test_only_who_may_operate_writes(api: Api, token: str | None, code: int, said: str) -> None:
    """A token that reads must not write."""
    found, problem, _ = api.ask("POST", ORDERS, PUT, token=token)
    assert (found, said in problem["detail"]) == (code, True)


def test_without_tokens_no_client_writes(pushed: Pushed) -> None:
    """Otherwise every page in a browser on this machine could; and the remedy names the setting."""
    server = serving(pushed, Access(setting="serve.tokens"))
    code, problem, _ = Api(server.port).ask("POST", ORDERS, PUT, token=None)
    assert (code, "set serve.tokens" in problem["detail"]) == (403, True)
    assert Api(server.port).ask("GET", "/api/v1/collections", token=None)[0] == 200
    server.close()


@pytest.mark.parametrize(
    ("path", "body", "headers", "code"),
    [
        (ORDERS, b"{", {}, 400),
        (ORDERS, b'[{"op": "put", "value": {"id": NaN}}]', {}, 400),
        (ORDERS, b"[" * 30_000, {}, 400),
        (ORDERS, [], {}, 400),
        (f"{ORDERS}?atomic=maybe", PUT, {}, 400),
        (ORDERS, PUT, {"Content_Type": "text/plain"}, 415),
        (ORDERS, PUT, {"Content_Encoding": "gzip"}, 415),
        (ORDERS, PUT, {"Idempotency_Key": "k" * 256}, 400),
        (ORDERS, PUT, {"Host": "evil.example"}, 421),
        (ORDERS, b" " * (1 << 17), {}, 413),
        ("/api/v1/collections/nothing", PUT, {}, 404),
        (ORDERS, {"op": "put", "value": {"id": "s3cr3t"}}, {}, 422),
        (ORDERS, {"op": "increment", "key": 77, "value": {"hits": 1}}, {}, 409),
    ],
)
def test_request_that_cannot_be_done_is_refused(
    api: Api, pushed: Pushed, path: str, body: Any, headers: dict[str, str], code: int
) -> None:
    """By its status, and nothing was written."""
    found, problem, _ = api.ask("POST", path, body, **headers)
    assert found == code
    assert "s3cr3t" not in str(problem)
    assert pushed.writer.checkpoint.next_offset == 1


def test_key_of_a_request_is_the_callers_own(api: Api) -> None:
    """A repeated request gets the same answer, marked as a repetition; a different body under its key is a conflict."""
    _, first, headers = api.ask("POST", ORDERS, PUT, Idempotency_Key="k1")
    assert "idempotency-replayed" not in {name.lower() for name in headers}
    _, again, headers = api.ask("POST", ORDERS, PUT, Idempotency_Key="k1")
    assert again == first
    assert headers["Idempotency-Replayed".lower()] == "true"
    assert api.ask("POST", ORDERS, {**PUT, "key": 1}, Idempotency_Key="k1")[0] == 409


def test_rows_in_columns_are_one_transaction(api: Api, pushed: Pushed) -> None:
    """Bulk loads: as many rows as fit into a request, or none."""
    sink = pa.BufferOutputStream()
    rows = pa.table({"id": list(range(500)), "note": [f"n{n}" for n in range(500)]})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    code, found, _ = api.ask("POST", ORDERS, bytes(sink.getvalue()), Content_Type=CONTENT_TYPE)
    assert (code, found["rows"], found["last_offset"]) == (200, 500, 500)
    assert len(table(pushed.folder)) == 500
    assert api.ask("POST", ORDERS, {"op": "delete", "key": 499})[1]["results"][0]["op"] == "d"

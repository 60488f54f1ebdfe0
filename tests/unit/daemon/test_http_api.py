"""The HTTP API: who may do what, and from where."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cdcflow.config import AccessToken, Role
from cdcflow.daemon.interfaces.http_server import HttpServer
from cdcflow.daemon.interfaces.web import DaemonInterfaces, application
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.http.access import Access, is_from_our_page
from cdcflow.http.openapi import KINDS, description
from cdcflow.http.operations import OPERATIONS, operation_of

READ, CONSUME, OPERATE = "r" * 24, "c" * 24, "o" * 24
JSON = {"Content-Type": "application/json"}
STATUS: dict[str, Any] = {"state": "capturing", "tables": {"public.orders": {"state": "done"}}, "left_out": []}


class Capture:
    """Answers as a daemon does, and records the requests it got."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []

    def answer(self, request: Mapping[str, Any], asked_by: str) -> object:
        operation = operation_of(request)
        assert asked_by == "HTTP, token ops"
        self.asked.append(request)
        if request.get("tables") == ["public.lost"]:
            raise SourceUnavailable("asking db:5432: it is away")
        if request.get("tables") == ["public.broken"]:
            raise RuntimeError("duplicate key (email)=(ann@example.com)")
        if request.get("tables") == ["public.unknown"]:
            raise ConfigurationError("table public.unknown is not captured", remedy="name it as schema.table")
        return STATUS if operation.name == "status" else {"op": operation.name, "tables": request.get("tables", [])}


CAPTURE = Capture()


@pytest.fixture
def capture() -> Capture:
    """The daemon that the servers here call, with no call recorded yet."""
    CAPTURE.asked.clear()
    return CAPTURE


@pytest.fixture(scope="module")
def guarded() -> Iterator[HttpServer]:
    """A server with a token of each role."""
    tokens = [token("dashboard", "read", "READ_TOKEN"), token("ops", "operate", "OPERATE_TOKEN")]
    made = HttpServer("127.0.0.1:0", lambda: STATUS, access=Access(tokens), answer=CAPTURE.answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("READ_TOKEN", READ)
        patch.setenv("OPERATE_TOKEN", OPERATE)
        made.start()
        yield made
        made.close()


@pytest.fixture(scope="module")
def unguarded() -> Iterator[HttpServer]:
    """A server without tokens, on loopback."""
    made = HttpServer("127.0.0.1:0", lambda: STATUS, answer=CAPTURE.answer)
    made.start()
    yield made
    made.close()


def token(name: str, role: Role, variable: str) -> AccessToken:
    return AccessToken(name=name, role=role, token=f"${{env:{variable}}}")


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.code = response.status
        self.headers = response.headers
        self.text = response.read().decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(
    server: HttpServer,
    method: str,
    path: str,
    body: object = None,
    *,
    token: str | None = None,
    headers: Mapping[str, str] = {},
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    sent = {"Host": f"localhost:{server.port}", **headers}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    try:
        text = body if isinstance(body, str | None) else json.dumps(body)
        connection.request(method, path, text, sent)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def pause(server: HttpServer, **given: Any) -> Answer:
    given["headers"] = {**JSON, **given.get("headers", {})}
    return ask(server, "POST", "/api/v1/operations/pause", {"tables": ["public.orders"]}, **given)


def session_of(server: HttpServer, token: str) -> str:
    """The cookie of a session that the page opened with this token."""
    answer = ask(server, "POST", "/api/v1/session", {"token": token}, headers={**JSON, **from_page(server)})
    assert answer.code == 200, answer.text
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert token not in cookie
    return cookie.partition(";")[0]


def from_page(server: HttpServer) -> dict[str, str]:
    """The headers that a browser adds to a request of cdcflow's own page."""
    return {"Origin": f"http://localhost:{server.port}", "Sec-Fetch-Site": "same-origin"}


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_operation_is_carried_out_for_who_may_operate(guarded: HttpServer, capture: Capture) -> None:
    """The same request reaches the capture as through the control socket."""
    answer = pause(guarded, token=OPERATE)
    assert (answer.code, answer.json) == (200, {"op": "pause", "tables": ["public.orders"]})
    assert capture.asked == [{"op": "pause", "tables": ["public.orders"]}]


@pytest.mark.parametrize("token", [None, "", "wrong", OPERATE + "x", OPERATE[:-1], "Bearer"])
def test_client_without_a_valid_token_does_and_sees_nothing(
    guarded: HttpServer, capture: Capture, token: str | None
) -> None:
    """S07: neither status nor operations; the answer explains how to send a token."""
    for answer in (pause(guarded, token=token), ask(guarded, "GET", "/api/v1/status", token=token)):
        assert answer.code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert "public.orders" not in answer.text
        assert "service.tokens" in answer.json["remedy"]
    assert capture.asked == []


def test_token_that_may_read_may_not_operate(guarded: HttpServer, capture: Capture) -> None:
    """A dashboard's token that leaks must not stop a capture."""
    assert ask(guarded, "GET", "/api/v1/status", token=READ).json == STATUS
    answer = pause(guarded, token=READ)
    assert answer.code == 403
    assert "dashboard has the role read" in answer.json["detail"]
    assert capture.asked == []


def test_without_configured_tokens_it_is_read_and_not_operated(unguarded: HttpServer, capture: Capture) -> None:
    """On loopback a status needs no login; an operation does, and the answer names what to configure."""
    assert ask(unguarded, "GET", "/api/v1/tables").json["tables"] == STATUS["tables"]
    answer = pause(unguarded)
    assert answer.code == 403
    assert "set service.tokens" in answer.json["detail"]
    assert pause(unguarded, token=OPERATE).code == 403
    assert capture.asked == []


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/health", "/metrics", "/", "/page.js", "/page.css"])
def test_probes_metrics_and_the_empty_page_need_no_token(guarded: HttpServer, path: str) -> None:
    """An orchestrator and a scraper have no tokens, and a page without data is where one is typed in."""
    assert ask(guarded, "GET", path).code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/status", "/api/v1/overview", "/api/v1/history", "/api/v1/changes", "/api/v1/transactions/1"),
        *("/api/v1/row", "/api/v1/row/history", "/api/v1/differences"),
    ],
)
def test_everything_else_needs_one(guarded: HttpServer, path: str) -> None:
    """S07: a new path that forgets to check the token would fail here."""
    assert ask(guarded, "GET", path).code == 401


def test_rotated_token_counts_at_once_and_the_old_one_no_longer(
    guarded: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S03: a secret is read when it is used; sessions opened with the old one end with it."""
    cookie = session_of(guarded, OPERATE)
    monkeypatch.setenv("OPERATE_TOKEN", "n" * 24)
    assert pause(guarded, token=OPERATE).code == 401
    assert pause(guarded, headers={"Cookie": cookie, **from_page(guarded)}).code == 401
    assert pause(guarded, token="n" * 24).code == 200
    monkeypatch.delenv("OPERATE_TOKEN")
    assert pause(guarded, token="").code == 401


def test_token_that_can_be_guessed_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any client that reaches the port may try as often as it likes."""
    monkeypatch.setenv("SHORT", "hunter2")
    with pytest.raises(ConfigurationError, match=r"the token ops of service\.tokens has fewer than 16") as found:
        Access([token("ops", "operate", "SHORT")]).check()
    assert "hunter2" not in str(found.value)
    assert Access([token("ops", "operate", "SHORT")]).caller("Bearer hunter2", None) is None


# ── other sites' web pages ───────────────────────────────────────────────────────────────────────────────────────


def test_session_of_the_page_operates_and_ends(guarded: HttpServer, capture: Capture) -> None:
    """The page trades a token for a cookie that no script can read, and can give it back."""
    ours = {"Cookie": session_of(guarded, OPERATE), **from_page(guarded)}
    assert pause(guarded, headers=ours).code == 200
    assert ask(guarded, "GET", "/api/v1/overview", headers=ours).json["caller"]["operations"]
    assert ask(guarded, "DELETE", "/api/v1/session", headers=ours).code == 200
    assert pause(guarded, headers=ours).code == 401
    assert len(capture.asked) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_request_that_another_page_made_up_does_nothing(
    guarded: HttpServer, capture: Capture, headers: dict[str, str]
) -> None:
    """S07, CSRF: a browser sends cdcflow's cookie along with requests of other pages, also of another port of
    localhost."""
    cookie = session_of(guarded, OPERATE)
    assert pause(guarded, headers={"Cookie": cookie, **headers}).code == 403
    assert capture.asked == []


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data", None])
def test_form_of_another_page_is_no_operation(guarded: HttpServer, capture: Capture, kind: str | None) -> None:
    """S07, CSRF: browsers send forms without a preflight request, but a form cannot have the content type JSON."""
    headers = {"Cookie": session_of(guarded, OPERATE), "Origin": "https://evil.example"}
    if kind is not None:
        headers["Content-Type"] = kind
    for token in (None, OPERATE):
        answer = ask(
            guarded, "POST", "/api/v1/operations/stop", '{"tables":["public.orders"]}', headers=headers, token=token
        )
        assert answer.code == 415
    assert capture.asked == []


def test_session_is_not_opened_for_another_page(guarded: HttpServer) -> None:
    """A page that could sign a browser in with the page's own token would see what is done in that session."""
    for headers in ({"Origin": "https://evil.example"}, {}):
        assert ask(guarded, "POST", "/api/v1/session", {"token": READ}, headers={**JSON, **headers}).code == 403
    wrong = ask(guarded, "POST", "/api/v1/session", {"token": "wrong"}, headers={**JSON, **from_page(guarded)})
    assert (wrong.code, "Set-Cookie" in wrong.headers) == (401, False)


def test_session_shows_nothing_to_another_page(guarded: HttpServer) -> None:
    """S07: a cookie that is sent along with another page's request does not count."""
    cookie = session_of(guarded, READ)
    foreign = {"Cookie": cookie, "Sec-Fetch-Site": "same-site"}
    assert ask(guarded, "GET", "/api/v1/overview", headers=foreign).code == 401


@pytest.mark.parametrize("path", ["/api/v1/operations/stop", "/api/v1/session"])
def test_rebound_name_operates_nothing_whatever_it_brings(guarded: HttpServer, capture: Capture, path: str) -> None:
    """S07, DNS rebinding: to the browser the attacker's name is the origin, and all of its headers agree."""
    evil = {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}
    body = {"token": OPERATE} if path.endswith("session") else {}
    answer = ask(guarded, "POST", path, body, token=OPERATE, headers={**JSON, **evil})
    assert answer.code == 421
    assert capture.asked == []


def test_two_daemons_on_one_machine_keep_their_sessions(guarded: HttpServer) -> None:
    """Cookies are not separated by port: with one name for both, signing in at one would sign out of the other."""
    assert session_of(guarded, READ).startswith(f"cdcflow_session_{guarded.port}=")


def test_requests_of_the_page_through_a_tls_proxy_are_same_origin() -> None:
    """The browser uses https, and the proxy forwards the request without it."""
    assert is_from_our_page({"host": "cdc.internal", "origin": "https://cdc.internal"}, "http")
    assert not is_from_our_page({"host": "cdc.internal", "origin": "https://cdc.internal.evil.example"}, "http")


def test_both_origin_headers_of_the_browser_must_be_same_origin() -> None:
    """After a redirect an origin can equal the page's own; where the browser reports a cross-site request, that
    counts."""
    ours = {"host": "localhost:8079", "origin": "http://localhost:8079"}
    assert is_from_our_page(ours, "http")
    assert is_from_our_page({**ours, "sec-fetch-site": "same-origin"}, "http")
    assert not is_from_our_page({**ours, "sec-fetch-site": "cross-site"}, "http")


@pytest.mark.parametrize("path", ["/", "/api/v1/overview", "/nothing", "/healthz"])
def test_headers_forbid_the_browser_what_the_page_must_not_do(guarded: HttpServer, path: str) -> None:
    """Nothing is fetched from elsewhere, no site frames the page, and only its own scripts run, whatever a row
    holds."""
    headers = ask(guarded, "GET", path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


# ── what is answered ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "body", "code", "said"),
    [
        ("pause", {"tables": "public.orders"}, 400, "tables must be a list"),
        ("pause", {"table": ["public.orders"]}, 400, "takes no table"),
        ("pause", {"op": "stop"}, 400, "named in the path"),
        ("pause", [], 400, "one JSON object"),
        ("pause", "{", 400, "not JSON"),
        ("explode", {}, 404, "no operation 'explode'"),
        ("pause", {"tables": ["public.unknown"]}, 400, "is not captured"),
        ("pause", {"tables": ["public.lost"]}, 503, "it is away"),
        ("pause", {"tables": ["public.broken"]}, 500, "could not answer: RuntimeError"),
    ],
)
def test_error_is_a_problem_document_with_its_remedy(
    guarded: HttpServer, name: str, body: object, code: int, said: str
) -> None:
    """RFC 9457: programs read the fields, operators the text; S03: no row values in either."""
    answer = ask(guarded, "POST", f"/api/v1/operations/{name}", body, token=OPERATE, headers=JSON)
    found = answer.json
    assert (answer.code, found["status"]) == (code, code)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert said in found["detail"]
    assert "ann@example.com" not in answer.text
    if said == "is not captured":
        assert found["remedy"] == "name it as schema.table"
        assert found["remedy"] not in found["detail"]


def test_body_without_end_is_refused(guarded: HttpServer) -> None:
    """One request must not fill the memory of a daemon that captures."""
    tables = {"tables": ["x" * 100] * 1000}
    assert ask(guarded, "POST", "/api/v1/operations/pause", tables, token=OPERATE, headers=JSON).code == 413


def test_every_operation_can_be_requested_and_is_described(guarded: HttpServer, capture: Capture) -> None:
    """All interfaces share one list: an operation that is added to it is in the API and in its description."""
    described = ask(guarded, "GET", "/api/v1/openapi.json", token=READ).json
    for name, operation in OPERATIONS.items():
        schema = described["paths"][f"/api/v1/operations/{name}"]["post"]["requestBody"]
        properties = schema["content"]["application/json"]["schema"]["properties"]
        assert set(properties) == {one.name for one in operation.arguments}
        body = {one.name: SAMPLES[one.kind] for one in operation.arguments}
        assert ask(guarded, "POST", f"/api/v1/operations/{name}", body, token=OPERATE, headers=JSON).code == 200
    assert [request["op"] for request in capture.asked] == list(OPERATIONS)


PAGE = ("/page.css", "/page.js", "/words.js", "/session.js", "/plots.js", "/explorer.js")
SAMPLES: dict[str, object] = {"tables": ["public.orders"], "keys": [["7"]], "text": "a = 1", "count": 3, "flag": True}


def test_description_has_every_path_and_every_kind_of_argument() -> None:
    """No client can be generated for a path that the description misses."""
    from typing import get_args

    from cdcflow.http.operations import Kind

    assert set(KINDS) >= set(get_args(Kind))
    described = set(description()["paths"])
    assert _paths() - described == {"/", *PAGE, "/status", "/api/v1/session"}
    assert {path for path in described if "/operations/" not in path} <= _paths()


def _paths() -> set[str]:
    from cdcflow.daemon.interfaces.history import SampleHistory

    app: Any = application(DaemonInterfaces(dict, lambda s: s, Access(), SampleHistory(dict)), ())
    routes = {route.path.replace(":int", "") for route in app._app.routes}
    return routes - {"/api/v1/operations/{name}"}


def test_every_reference_of_the_description_leads_somewhere() -> None:
    """Generators of clients stop at the first one that does not."""
    whole = description()

    def references(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            yield from ([value["$ref"]] if "$ref" in value else [])
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    found = set(references(whole))
    assert found
    for reference in found:
        at: Any = whole
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]

"""The fleet's API and metrics over HTTP: who may read, what is filtered, and how much is sent."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.support.fleet.simulated import FleetServer, finding, fleet, publish, report

from cdcflow.config import AccessToken
from cdcflow.daemon.interfaces import fleet_web
from cdcflow.daemon.interfaces.fleet_web import FleetInterfaces, application
from cdcflow.fleet.metrics import LISTED
from cdcflow.fleet.openapi import description
from cdcflow.http.access import Access

PAGE_BYTES_MAX = 300_000
TOKEN = "r" * 24
DOCS = Path(__file__).parents[3] / "docs"


@contextmanager
def serving(folder: Path, access: Access | None = None, **settings: Any) -> Iterator[FleetServer]:
    made = FleetServer(folder, access, **settings)
    made.start()
    try:
        yield made
    finally:
        made.close()


def ask(server: FleetServer, path: str, token: str | None = None, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection.request("GET", path, headers=headers | ({"Host": host} if host else {}))
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def ask_json(server: FleetServer, path: str) -> Any:
    code, text = ask(server, path)
    assert code == 200, text
    return json.loads(text)


def names(server: FleetServer, query: str) -> list[str]:
    return [one["name"] for one in ask_json(server, f"/api/v1/fleet?{query}")["pipelines"]]


def test_page_of_200_pipelines_is_light(tmp_path: Path) -> None:
    """It is opened on a phone at night: the page with all its data, uncompressed, has at most 300 KB."""
    publish(tmp_path, *fleet(200))
    with serving(tmp_path) as server:
        files = ["", *(name for name in fleet_web._FILES if name != "index.html"), *fleet_web._OF_THE_DAEMONS_PAGE]
        weights = {name: len(ask(server, f"/{name}")[1].encode()) for name in [*files, "api/v1/fleet"]}
        found = ask_json(server, "/api/v1/fleet")
    assert len(found["pipelines"]) == 200
    assert sum(weights.values()) <= PAGE_BYTES_MAX, weights
    levels = [one["level"] for one in found["pipelines"]]
    assert levels == sorted(levels, key=("error", "warning", "note", "good").index)
    assert found["pipelines"][0]["state"] == "silent"
    Draft202012Validator(
        description()["paths"]["/api/v1/fleet"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    ).validate(found)


def test_filters_select_pipelines(tmp_path: Path) -> None:
    """A script requests one state, and gets no others."""
    publish(tmp_path, report("shop-eu"), report("shop-us", findings=[finding("error", "Lost.")]), report("bank"))
    with serving(tmp_path) as server:
        assert names(server, "name=SHOP") == ["shop-us", "shop-eu"]
        assert names(server, "state=capturing&level=good") == ["bank", "shop-eu"]
        assert names(server, "state=silent") == []
        assert ask_json(server, "/api/v1/fleet?state=silent")["counts"]["capturing"] == 3


def test_pipeline_has_all_its_findings_and_members(tmp_path: Path) -> None:
    """The table shows the worst one only."""
    many = [finding("error", "A."), finding("warning", "B.", "C.")]
    publish(tmp_path, report("shop", findings=many), report("shop", kind="merge", place="m", state="merging"))
    with serving(tmp_path) as server:
        found = ask_json(server, "/api/v1/fleet/shop")
        assert [one["text"] for one in found["findings"]] == ["A.", "B."]
        assert [(one["kind"], one["state"]) for one in found["members"]] == [
            ("capture", "capturing"),
            ("merge", "merging"),
        ]
        assert ask(server, "/api/v1/fleet/other")[0] == 404


def test_data_needs_a_token_and_probes_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the daemon's own page."""
    monkeypatch.setenv("FLEET_TOKEN", TOKEN)
    access = Access([AccessToken(name="ops", role="read", token="${env:FLEET_TOKEN}")], setting="tokens")  # noqa: S106
    publish(tmp_path, report("shop"))
    with serving(tmp_path, access) as server:
        for path in ("/api/v1/fleet", "/api/v1/fleet/shop", "/api/v1/openapi.json"):
            assert ask(server, path)[0] == 401
            assert ask(server, path, "x" * 24)[0] == 401
            assert ask(server, path, TOKEN)[0] == 200
        for path in ("/healthz", "/readyz", "/metrics", "/", "/fleet.js"):
            assert ask(server, path)[0] == 200
        assert ask(server, "/api/v1/fleet", TOKEN, host="evil.example.com")[0] == 421
        assert TOKEN not in ask(server, "/api/v1/fleet", TOKEN)[1]


def test_page_that_has_read_nothing_yet_is_not_ready(tmp_path: Path) -> None:
    """An empty page would be taken for an empty fleet."""
    made = FleetServer(tmp_path)
    made._server.start()
    assert ask(made, "/readyz")[0] == 503
    made.watch.refresh()
    assert ask(made, "/readyz")[0] == 200
    made.close()


def test_metrics_count_pipelines_by_state(tmp_path: Path) -> None:
    """An alert on silent pipelines needs no other tool."""
    silent = report("gone")
    publish(
        tmp_path, report("shop"), report("late", at=silent.at - 900), report("q", findings=[finding("error", "X.")])
    )
    with serving(tmp_path) as server:
        lines = ask(server, "/metrics")[1].splitlines()
    for line in (
        'cdcflow_fleet_pipelines{state="capturing"} 2.0',
        'cdcflow_fleet_pipelines{state="silent"} 1.0',
        'cdcflow_fleet_levels{level="error"} 2.0',
        "cdcflow_fleet_outages 0.0",
        'cdcflow_fleet_pipeline_reports{pipeline="late"} 0.0',
        'cdcflow_fleet_pipeline_reports{pipeline="shop"} 1.0',
        'cdcflow_fleet_pipeline_errors{pipeline="q"} 1.0',
        'cdcflow_fleet_pipeline_lag_seconds{pipeline="shop"} 0.8',
    ):
        assert line in lines
    assert not [line for line in lines if line.startswith('cdcflow_fleet_pipeline_lag_seconds{pipeline="late"')]


def test_every_metric_is_in_the_docs() -> None:
    """An operator who writes an alert searches there."""
    page = (DOCS / "fleet.md").read_text()
    for metric, _ in LISTED:
        assert f"`{metric.full_name}`" in page


def test_description_has_every_path(tmp_path: Path) -> None:
    """No client can be generated for a path that it misses."""
    server = FleetServer(tmp_path)
    app: Any = application(FleetInterfaces(server.watch, Access()), ())
    routes = {route.path for route in app._app.routes} - {"/api/v1/session"}
    files = {f"/{name}".removesuffix("index.html") for name in (*fleet_web._FILES, *fleet_web._OF_THE_DAEMONS_PAGE)}
    assert routes - files == set(description()["paths"])


def test_page_has_every_file_that_it_names_and_makes_no_markup_of_texts() -> None:
    """Texts of members are shown as text, whatever they contain."""
    assert set(fleet_web._FILES) == {path.name for path in fleet_web.FLEET_PAGE.iterdir()}
    text = "".join(path.read_text() for path in fleet_web.FLEET_PAGE.iterdir())
    named = re.findall(r"""(?:src|href)="([a-z.]+\.(?:js|css))"|from "\./([a-z]+\.js)\"""", text)
    assert {a or b for a, b in named} <= {*fleet_web._FILES, *fleet_web._OF_THE_DAEMONS_PAGE}
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in text

"""Grafana's dashboard over two real daemons and a real Prometheus: every panel has data, and a picture is drawn.

`make dashboard-picture` writes the picture into docs/images.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
from PIL import Image
from tests.ops.dashboard import Dashboard, Panel
from tests.ops.prometheus import Prometheus
from tests.page.browser import Browser, started
from tests.servers.objects import ObjectServer
from tests.servers.postgres import Database, PostgresServer
from tests.support.daemon.running_shop import DaemonFolder
from tests.support.polling import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.long]

HISTORY = 60_000
"""Rows that exist before the capture. Reading them takes long enough to be seen in the panels."""
PAUSE_S = 0.1
PICTURE = "dashboard.png"


class Load:
    """Transactions of changing size into a database, until it is stopped. An outage of the server interrupts it."""

    def __init__(self, database: Database, rows: int) -> None:
        self._database = database
        self._rows = rows
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        number = 0
        while not self._stopped.wait(PAUSE_S):
            number += 1
            rows = self._rows * (2 + number // 60 % 3)
            statement = f"INSERT INTO orders (note) SELECT repeat('x', 40) FROM generate_series(1, {rows})"
            with contextlib.suppress(psycopg.OperationalError):
                self._database.execute(f"{statement}; UPDATE history SET note = 'y' WHERE id = {number}")

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A daemon with merges, its database and the load on it."""

    daemon: DaemonFolder
    database: Database
    address: str
    name: str

    @classmethod
    def create(cls, folder: Path, server: PostgresServer, store: ObjectServer, name: str) -> Pipeline:
        folder.mkdir()
        database = server.create_database(name)
        database.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, note text)")
        database.execute("CREATE TABLE history (id int PRIMARY KEY, note text)")
        database.execute(f"INSERT INTO history SELECT n, repeat('h', 60) FROM generate_series(1, {HISTORY}) AS n")
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        daemon = DaemonFolder(folder, {"kind": "postgres", "url": database.url}, "public.history")
        daemon.rest = {
            "log": {
                "path": "log",
                "seal": {"age_max": "1s"},
                "objects": store.objects("logs", name).model_dump(mode="json", exclude_none=True),
            },
            "merge": {"engine": "local", "warehouse": "warehouse", "every": "3s"},
            "service": {"listen": address},
        }
        daemon.write(
            tables=["public.*"],
            heartbeat="1s",
            backfill={"rows_per_second_max": 5_000},
        )
        return cls(daemon, database, address, f"{name}:8079")

    def has_read(self) -> bool:
        """Whether the rows that existed before are in the log."""
        status = self.daemon.ask("status")
        return bool(status["tables"].get("public.history", {}).get("state") == "done")


class Collected:
    """A Prometheus that has watched two daemons: existing rows, load, an outage of the server, and a restart."""

    def __init__(self, prometheus: Prometheus, begin: float, end: float, names: list[str]) -> None:
        self.prometheus = prometheus
        self.begin, self.end = begin, end
        self.names = names

    def dashboard(self, *instances: str) -> Dashboard:
        return Dashboard(self.prometheus, self.begin, self.end, instances)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collected]:
    room = tmp_path_factory.mktemp("dashboard")
    with PostgresServer() as server, ObjectServer() as store, contextlib.ExitStack() as ending:
        server.reload(max_slot_wal_keep_size="4GB")
        shop, bank = (Pipeline.create(room / name, server, store, name) for name in ("shop", "bank"))
        names = {one.address: one.name for one in (shop, bank)}
        prometheus = ending.enter_context(Prometheus(room / "prometheus", *names, names=names))
        for one, rows in ((shop, 200), (bank, 60)):
            ending.callback(Load(one.database, rows).stop)
            ending.callback(one.daemon.kill)
        begin = time.time()

        def watch(scrapes: int) -> None:
            """Wait until that many more scrapes of both daemons are stored."""
            since = time.time()
            query = 'min(count_over_time(cdcflow_lag_seconds{job="cdcflow"}[1h] @ end()))'

            def stored() -> float:
                before = _value(prometheus, query, since)
                return _value(prometheus, query, time.time()) - before

            wait_until(lambda: stored() >= scrapes, f"{scrapes} scrapes", patience_s=300)

        for one in (shop, bank):
            one.daemon.start_again()
        for one in (shop, bank):
            wait_until(one.has_read, f"the existing rows of {one.name}", patience_s=300)
        watch(15)
        server.stop()
        for one in (shop, bank):
            one.daemon.wait_until(lambda status: status["state"] == "waiting", "the outage to be noticed")
        watch(8)
        server.start()
        for one in (shop, bank):
            one.daemon.wait_until(lambda status: status["state"] == "capturing", "the end of the outage")
        watch(15)
        bank.daemon.kill()
        bank.daemon.start_again()
        watch(25)
        yield Collected(prometheus, begin, time.time(), sorted(names.values()))


def _value(prometheus: Prometheus, query: str, at: float) -> float:
    found = prometheus.query(query, at)
    return found[0][1][0][1] if found else 0.0


def test_every_query_of_every_panel_has_data(collected: Collected) -> None:
    """An empty panel looks like a quiet night."""
    for panel in collected.dashboard().panels:
        for target in panel.model["targets"]:
            series = panel.of(target["refId"])
            assert series, f"{panel.title}: {target['expr']}"
            assert target.get("instant") or max(len(one.points) for one in series) > 10, panel.title


def test_lines_of_a_panel_have_different_legends(collected: Collected) -> None:
    """A reader cannot tell two lines with one name from each other."""
    for panel in collected.dashboard().panels:
        legends = [one.legend for one in panel.series]
        assert len(set(legends)) == len(legends), f"{panel.title}: {legends}"


def test_variable_offers_every_daemon_and_selects_one(collected: Collected) -> None:
    """With one of them chosen no panel shows the other."""
    names = collected.names
    assert collected.dashboard().instances == names
    for panel in collected.dashboard(names[0]).panels:
        assert panel.series, panel.title
        assert not [one.legend for one in panel.series if names[1] in one.legend], panel.title


def test_state_is_that_of_now(collected: Collected) -> None:
    """States that have ended, such as that of the outage, are not shown as states of the daemons."""
    (state,) = [panel for panel in collected.dashboard().panels if panel.title == "State"]
    assert sorted(one.legend for one in state.series) == [f"{name} capturing" for name in collected.names]


def test_what_happened_is_in_the_panels(collected: Collected) -> None:
    """Existing rows, the outage, the load and the restart: each is a line that is not zero."""
    dashboard = collected.dashboard()
    by_title = {panel.title: panel for panel in dashboard.panels}

    def highest(title: str, ref: str) -> float:
        return max(value for one in by_title[title].of(ref) for _, value in one.points)

    assert highest("Rows a second", "A") > 0
    assert highest("Rows a second", "B") > 0
    assert highest("Held back by windows", "A") > 0
    assert highest("Retries and errors an hour", "A") > 0
    assert highest("Backfill", "B") == 1
    assert highest("Merge: rows behind", "A") > 0
    assert len(dashboard.annotations) >= 1


def test_picture_shows_every_panel(collected: Collected, tmp_path: Path) -> None:
    """Each panel fits into its place with its title, its lines and its legend."""
    dashboard = collected.dashboard()
    folder = Path(os.environ.get("CDCFLOW_PICTURES", tmp_path))
    with started() as browser:
        draw(browser, dashboard, tmp_path / "dashboard.html", folder / PICTURE)
        found = browser.run(_LOOK)
    assert [one["title"] for one in found] == [panel.title for panel in dashboard.panels]
    for one, panel in zip(found, dashboard.panels, strict=True):
        assert one["lines"] >= len(panel.series), one
        assert not one["beyond"], one
    with Image.open(folder / PICTURE) as image:
        assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 20


def draw(browser: Browser, dashboard: Dashboard, page: Path, picture: Path) -> None:
    page.write_text(dashboard.page())
    browser.size(1400, 900)
    browser.driver.get(page.as_uri())
    picture.parent.mkdir(parents=True, exist_ok=True)
    browser.picture(picture)


_LOOK = """
return [...document.querySelectorAll('section')].map((one) => {
  const box = one.getBoundingClientRect();
  const inside = (r) => r.left >= box.left && r.right <= box.right && r.top >= box.top && r.bottom <= box.bottom;
  return {
    title: one.querySelector('h2').textContent,
    lines: new Set([...one.querySelectorAll('path.line')].map((p) => p.getAttribute('stroke'))).size
           || one.querySelectorAll('p').length,
    beyond: [...one.querySelectorAll('text, li, b, path')].filter((e) => !inside(e.getBoundingClientRect()))
            .map((e) => e.textContent || e.outerHTML.slice(0, 80)),
  };
});
"""


def test_panel_without_data_is_found(collected: Collected) -> None:
    """A panel of another metric has no series: the tests above would name it."""
    dashboard = collected.dashboard()
    model = {**dashboard.panels[1].model, "targets": [{"refId": "A", "expr": "cdcflow_no_such", "legendFormat": ""}]}
    panel = replace(dashboard.panels[1], model=model, series=tuple(dashboard.series_of(model)))
    assert isinstance(panel, Panel)
    assert panel.series == ()

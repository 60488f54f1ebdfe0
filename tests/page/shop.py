"""A daemon's HTTP server with a shop: real log, real application, and a capture that only remembers."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdcflow.config import AccessToken
from cdcflow.daemon.interfaces import facts
from cdcflow.daemon.interfaces.findings import remarks
from cdcflow.daemon.interfaces.http_server import HttpServer
from cdcflow.daemon.interfaces.recent import Recent
from cdcflow.errors import ConfigurationError
from cdcflow.http.access import Access
from cdcflow.http.explorer import Explorer
from cdcflow.http.operations import operation_of
from cdcflow.log.read.folder import FolderReader
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import UNCHANGED
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, Writer, changes, orders, transactions

NASTY = "<img src=x onerror=\"document.title='owned'\">"
GB = 1_000_000_000

TABLES: dict[str, dict[str, Any]] = {
    "public.airlines": {"state": "done", "units": 1, "units_done": 1, "rows": 16},
    "public.airports": {"state": "done", "units": 12, "units_done": 12, "rows": 1_458},
    "public.flights": {"state": "reading", "units": 48_200, "units_done": 31_330, "rows": 21_874_512},
    "public.planes": {"state": "paused", "units": 310, "units_done": 120, "rows": 40_112},
    "public.weather": {"state": "failed", "units": 900, "units_done": 0, "rows": 0,
                       "reason": "SELECT is not granted"},
    "shop.orders": {"state": "done", "units": 5_000, "units_done": 5_000, "rows": 1_204_331},
}  # fmt: skip
STATUS: dict[str, Any] = {
    "state": "capturing",
    "cut": 18_204,
    "durable_offset": 31_337_042,
    "position": "16/B374D848",
    "lag_bytes": 1_840_000,
    "lag_seconds": 0.8,
    "rows_per_second": 48_311.0,
    "retained_bytes": 2_150_000_000,
    "held_rows": 1_204,
    "held_bytes": 310_000,
    "window": ["public.flights"],
    "heartbeat_age_seconds": 0.4,
    "heartbeat_age_seconds_max": 40,
    "source": {"slot": "cdcflow_shop", "wal_status": "reserved", "safe_wal_bytes": str(2_145_000_000)},
    "left_out": [],
    "consumers": {
        "search": {"state": "changes", "offset": 31_337_042, "behind_rows": 0},
        "billing": {"state": "changes", "offset": 31_330_000, "behind_rows": 7_042},
        "report": {"state": "backfill", "offset": 31_000_000, "behind_rows": 337_042},
    },
}


class Shop:
    """A substitute for the daemon: `status` can be changed, `asked` are the operations that were requested."""

    def __init__(self, path: Path, tokens: Sequence[AccessToken] = (), note: str = NASTY) -> None:
        self.status: dict[str, Any] = {**copy.deepcopy(STATUS), "tables": copy.deepcopy(TABLES)}
        self.status["commit_clock"] = int(time.time() * 1e6)
        for fields in self.status["tables"].values():
            known = {"done": "fresh", "reading": "fresh"}.get(fields["state"], "not proven")
            fields |= {"freshness": known, "fresh_as_of": time.time() - 4 if known == "fresh" else None}
        self.asked: list[Mapping[str, Any]] = []
        self.disk = {"folder": "/var/lib/cdcflow/log", "free_bytes": 61 * GB, "total_bytes": 100 * GB}
        self.recent = Recent(lambda event, fields: None)
        self._path = path
        _write_log(path / "log", note)
        _write_cuts(path / "cuts")
        self.server = HttpServer(
            "127.0.0.1:0",
            lambda: self.status,
            access=Access(tokens),
            answer=self._answer,
            overview=self._overview,
            explorer=Explorer(lambda: FolderReader(path / "log")),
        )

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server.port}/"

    def remember(self, hours: float = 5.0) -> None:
        """Fill the history as if the daemon had run for that time, with a burst and an outage in it."""
        now, given = time.time(), self.status
        for back in range(int(hours * 360), 0, -1):
            self.status = _then(given, back / 360)
            self.server.history.take(now - back * 10)
        self.status = given
        self.server.history.take(now)

    def _overview(self, status: Mapping[str, Any]) -> dict[str, Any]:
        room, merges = facts.headroom(status), facts.merges(self._path / "cuts")
        return {
            "version": "0.1.0",
            "source": {"kind": "postgres", "log": "/var/lib/cdcflow/log"},
            "status": status,
            "headroom": room,
            "disk": self.disk,
            "merges": merges,
            "recent": self.recent.newest(),
            "findings": [asdict(one) for one in remarks(status, room, self.disk, merges)],
        }

    def _answer(self, request: Mapping[str, Any], asked_by: str) -> object:
        operation = operation_of(request)
        if request.get("tables") == ["public.weather"]:
            raise ConfigurationError("SELECT is not granted", remedy="GRANT SELECT ON public.weather TO cdcflow")
        self.asked.append(request)
        if operation.name == "resume":
            return {"op": "resume", "tables": {name: {"outcome": "resumed"} for name in request["tables"]}}
        return {"op": operation.name, "tables": request.get("tables", [])}


def _then(status: Mapping[str, Any], hours_ago: float) -> dict[str, Any]:
    """A history for the status: a burst an hour ago, an outage of the source two and a half hours ago."""
    wave = 1 + math.sin(hours_ago * 9) / 3 + math.sin(hours_ago * 71) / 7
    burst = math.exp(-(((hours_ago - 1.1) * 5) ** 2))
    silent = 2.4 < hours_ago < 2.6
    return {
        **status,
        "lag_bytes": None if silent else 1_500_000 * wave + 95_000_000 * burst,
        "lag_seconds": None if silent else 0.7 * wave + 41 * burst,
        "rows_per_second": None if silent else 30_000 * wave + 90_000 * burst,
        "retained_bytes": None if silent else 1.3e9 + 2.0e8 * wave + 1.4e9 * burst - 1e8 * hours_ago,
    }


def _write_log(path: Path, note: str) -> None:
    log = FileLog.open(path, SourceIdentity("postgres", "7301", "shop", "1"))
    writer = Writer.of(log)
    writer.put(orders(1, 2, 3, xid=801), orders(4, 5, xid=802))
    log.roll()
    log.seal_pending()
    writer.put(
        transactions([803], [1], changes(ORDERS, [{"id": 2, "note": "deliver to the back door", "_op": "u"}])),
        transactions([804], [2], changes(ORDERS, [{"id": 4, "_op": "d"}, {"id": 6, "note": note}])),
        transactions([805], [1], changes(ORDERS, [{"id": 2, "_op": "u", UNCHANGED: ["note"]}])),
    )
    log.close()


def _write_cuts(path: Path) -> None:
    """Commits of the table of cuts, as merges leave them in Delta's log."""
    (path / "_delta_log").mkdir(parents=True)
    for number in range(4):
        clock = int((time.time() - 30 * (4 - number)) * 1000)
        complete = {name: {"complete": name != "public.flights"} for name in TABLES if name != "public.weather"}
        cut = {"cut": 18_120 + 28 * number, "offset": 31_000_000, "commit_clock": clock * 1000 - 700_000}
        said = {"cdcflow": {"published": {**cut, "tables": complete, "left_out": {}}}}
        info = {"commitInfo": {"timestamp": clock, "userMetadata": json.dumps(said)}}
        (path / "_delta_log" / f"{number:020}.json").write_text(json.dumps(info) + "\n")

"""The daemon's HTTP server: what it shows of a capture, and who may ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdcflow import __version__, wiring
from cdcflow.cli.events import OnEvent
from cdcflow.cli.watch import Watch
from cdcflow.config import Config
from cdcflow.service import facts
from cdcflow.service.access import Access
from cdcflow.service.explorer import Explorer
from cdcflow.service.findings import remarks
from cdcflow.service.history import EVERY_S
from cdcflow.service.http import HttpServer
from cdcflow.service.recent import Recent
from cdcflow.warehouse.paths import CUTS

MERGES_EVERY_S = 10.0


def http_server(
    config: Config,
    listen: str,
    watch: Watch,
    answer: Callable[[Mapping[str, Any], str], object],
    tell: OnEvent,
    problems: Callable[[], Sequence[object]] = list,
) -> HttpServer:
    """The server of a running capture. It listens once it is started. What `tell` remembers, if it does, is shown, and
    what `problems` finds at the source."""
    around = Surroundings(config, tell.newest if isinstance(tell, Recent) else list, problems)
    return HttpServer(
        listen,
        watch.status,
        config.service.hosts,
        access=Access(config.service.tokens),
        answer=answer,
        overview=around.overview,
        sample=lambda: around.sampled(watch.status(at_most_old_s=EVERY_S)),
        explorer=Explorer(lambda: wiring.log_reader(config)),
    )


class Surroundings:
    """What the page shows besides the status: headroom, disk, merges, and what is to be said about all of it."""

    def __init__(
        self,
        config: Config,
        recent: Callable[[], list[dict[str, Any]]],
        problems: Callable[[], Sequence[object]] = list,
    ) -> None:
        self._config = config
        self._problems = problems
        self._recent = recent
        self._cuts = _cuts_folder(config)
        self._merges: list[dict[str, Any]] | None = None
        self._asked_at = float("-inf")

    def overview(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """A status with everything that the page shows besides."""
        whole = {**status, **wiring.upload_status(self._config)}
        if "source_error" not in whole:
            whole["problems"] = self._problems()
        room, disk, merges = facts.headroom(whole), facts.disk(self._config.log.folder), self._published()
        return {
            "version": __version__,
            "source": {"kind": self._config.source.kind, "log": str(wiring.log_reader(self._config).name)},
            "status": whole,
            "headroom": room,
            "disk": disk,
            "merges": merges,
            "recent": self._recent(),
            "findings": [asdict(one) for one in remarks(whole, room, disk, merges)],
        }

    def sampled(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers that are plotted."""
        return {**status, "disk_free_bytes": facts.disk(self._config.log.folder).get("free_bytes")}

    def _published(self) -> list[dict[str, Any]] | None:
        now = time.monotonic()
        if now - self._asked_at >= MERGES_EVERY_S:
            self._merges, self._asked_at = facts.merges(self._cuts), now
        return self._merges


def _cuts_folder(config: Config) -> Path | None:
    """Where the table of published cuts is; None: on no disk of this machine."""
    warehouse = config.merge.warehouse
    if not isinstance(warehouse, Path) or (config.merge.format == "iceberg" and config.merge.catalog is not None):
        return None
    return warehouse / CUTS

"""The daemon's HTTP server: which data of a capture it shows, and to whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdcflow import wiring
from cdcflow.config import Config
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.interfaces import facts
from cdcflow.daemon.interfaces.findings import remarks
from cdcflow.daemon.interfaces.history import EVERY_S, SampleHistory
from cdcflow.daemon.interfaces.http_server import HttpServer
from cdcflow.daemon.interfaces.recent import Recent
from cdcflow.daemon.running_components import Running
from cdcflow.daemon.status import Watch
from cdcflow.http.access import Access
from cdcflow.http.certificate import ServerCertificate
from cdcflow.http.consumers import ConsumerDoor
from cdcflow.http.explorer import Explorer
from cdcflow.log.maintenance import state_files
from cdcflow.log.query.consumers import Consumers
from cdcflow.log.query.log import ChangeLog
from cdcflow.tables.paths import CUTS
from cdcflow.version import __version__

MERGES_EVERY_S = 10.0
REPLACED_WITHIN_S = 10
"""How long requests of a server that is replaced may take."""

FILES_MAX = 256
"""The maximum number of a log's files read for one query: the processors are needed by the capture."""


class Http:
    """The HTTP server alongside a capture, for `daemon.running_components`.

    It shows the events that `tell` remembers (if it remembers any), and the problems at the source that `problems`
    returns. The plotted data is kept when the server is replaced.
    """

    def __init__(
        self,
        in_use: Callable[[], Config],
        watch: Watch,
        answer: Callable[[Mapping[str, Any], str], object],
        tell: OnEvent,
        problems: Callable[[], Sequence[object]] = list,
    ) -> None:
        self._around = around = Surroundings(in_use, tell.newest if isinstance(tell, Recent) else list, problems)
        self._watch = watch
        self._answer = answer
        self._tell = tell
        self._opened: tuple[Config, ChangeLog] | None = None
        self._explorer = Explorer(lambda: wiring.log_reader(in_use()), asked=lambda: self._log_for(in_use()))
        self._consumed: tuple[Config, Consumers] | None = None
        self._consumers = ConsumerDoor(lambda: self._consumers_of(in_use()), tell)
        self._history = SampleHistory(lambda: around.sample(watch.status(at_most_old_s=EVERY_S)))
        self._takes_samples = False
        self._newest: HttpServer | None = None

    def _log_for(self, config: Config) -> ChangeLog:
        """Return the log, opened once for these settings, so that the part of its index that was read stays in
        memory."""
        if self._opened is None or self._opened[0] is not config:
            self._opened = config, wiring.open_for_queries(config, files_max=FILES_MAX)
        return self._opened[1]

    def _consumers_of(self, config: Config) -> Consumers:
        """Return the log's consumers, opened once for these settings, separately from other queries of the log."""
        if self._consumed is None or self._consumed[0] is not config:
            self._consumed = config, wiring.open_for_queries(config).consumers()
        return self._consumed[1]

    def made_of(self, config: Config) -> object:
        service = config.service
        return service.listen, service.hosts, service.tokens, service.tls, service.requests_per_second_max

    def prepare(self, config: Config) -> Running | None:
        if (listen := config.service.listen) is None:
            return None
        tls = config.service.tls
        server = HttpServer(
            listen,
            self._watch.status,
            config.service.hosts,
            access=Access(config.service.tokens, requests_per_second_max=config.service.requests_per_second_max),
            answer=self._answer,
            overview=self._around.overview,
            explorer=self._explorer,
            history=self._history,
            consumers=self._consumers,
            certificate=None if tls is None else ServerCertificate(tls, "service.tls", self._tell),
        )
        before = self._newest
        server.start(before)
        return _HttpServing(server, lambda: self._begin(server, listen, before), lambda: self._forget(server))

    def _forget(self, server: HttpServer) -> None:
        if self._newest is server:
            self._newest = None

    def _begin(self, server: HttpServer, listen: str, before: HttpServer | None) -> None:
        if before is not None:
            before.give_way_to(server)
        self._newest = server
        if not self._takes_samples:
            self._history.start()
            self._takes_samples = True
        self._tell("http listening", {"listen": listen, "port": server.port})

    def close(self) -> None:
        """Stop sampling the plotted numbers."""
        self._history.close()


class _HttpServing:
    def __init__(self, server: HttpServer, begun: Callable[[], None], ended: Callable[[], None]) -> None:
        self._server = server
        self._begun = begun
        self._ended = ended

    def begin(self) -> None:
        self._begun()

    def end(self, *, wait: bool) -> None:
        self._ended()
        # In a thread: this server may be answering the request that replaces it, and a busy machine takes long to.
        within_s = 1 if wait else REPLACED_WITHIN_S
        ending = threading.Thread(target=self._server.close, args=(within_s,), name="http-end", daemon=True)
        ending.start()
        if wait:
            ending.join()


class Surroundings:
    """The facts that the page shows in addition to the status: headroom, disk, merges, and remarks about all of it."""

    def __init__(
        self,
        in_use: Callable[[], Config],
        recent: Callable[[], list[dict[str, Any]]] = list,
        problems: Callable[[], Sequence[object]] = list,
    ) -> None:
        self._in_use = in_use
        self._problems = problems
        self._recent = recent
        self._merges: list[dict[str, Any]] | None = None
        self._asked_at = float("-inf")

    def overview(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return a status with everything else that the page shows."""
        config = self._in_use()
        whole = {**status, **wiring.upload_status(config)}
        if "source_error" not in whole:
            whole["problems"] = self._problems()
        room, disk, merges = facts.headroom(whole), facts.disk(config.log.folder), self._latest_merges()
        return {
            "version": __version__,
            "source": {"kind": config.source.kind, "log": str(wiring.log_reader(config).name)},
            "status": whole,
            "headroom": room,
            "disk": disk,
            "merges": merges,
            "recent": self._recent(),
            "findings": [asdict(one) for one in remarks(whole, room, disk, merges)],
        }

    def sample(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return the numbers that are plotted."""
        return {**status, "disk_free_bytes": facts.disk(self._in_use().log.folder).get("free_bytes")}

    def _latest_merges(self) -> list[dict[str, Any]] | None:
        now = time.monotonic()
        if now - self._asked_at >= MERGES_EVERY_S:
            self._merges, self._asked_at = _merges_of(self._in_use()), now
        return self._merges


def _merges_of(config: Config) -> list[dict[str, Any]] | None:
    """Return the latest published cuts. If the warehouse is in a store, or has a catalog, they are the cuts that merges
    wrote into the log's folder, because a page that asked a store would wait for it."""
    cuts = _cuts_folder(config)
    if cuts is not None:
        return facts.merges(cuts)
    return state_files.of_merges(config.log.folder, str(config.merge.warehouse))


def _cuts_folder(config: Config) -> Path | None:
    """Return the folder of the table of published cuts; `None` if it is on no disk of this machine."""
    warehouse = config.merge.warehouse
    if not isinstance(warehouse, Path) or (config.merge.format == "iceberg" and config.merge.catalog is not None):
        return None
    return warehouse / CUTS

"""The process of `cdcflow serve`: an HTTP server of collections, the writer of their log, and the log's maintenance."""

from __future__ import annotations

import contextlib
import threading

from cdcflow import wiring
from cdcflow.config import Config
from cdcflow.daemon.daemon import telling_end
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.interfaces.http_server import HttpServer, check_installed
from cdcflow.daemon.lean import end_loading
from cdcflow.daemon.signals import SLICE_S, obeying_signals
from cdcflow.errors import InvariantViolated
from cdcflow.http.access import Access
from cdcflow.http.certificate import ServerCertificate


def serve(settings: Config, tell: OnEvent) -> None:
    """Accept rows over HTTP until a signal ends it, or the writer fails.

    Raises:
        CdcflowError: as the writer of the log raises it.
    """
    check_installed()
    from cdcflow.push.web import PushInterfaces, application

    stop = threading.Event()
    with contextlib.ExitStack() as around:
        around.enter_context(telling_end(tell, "serving failed"))
        around.enter_context(obeying_signals(stop.set, tell))
        pushing = wiring.open_push_log(settings, tell)
        around.callback(pushing.writer.stop)
        pushing.writer.start()
        door = pushing.serve
        access = Access(door.tokens, setting="serve.tokens", requests_per_second_max=door.requests_per_second_max)
        asked, consumers = pushing.explorer, pushing.consumers
        doors = PushInterfaces(pushing.shapes, pushing.writer, access, asked, consumers, door.request_bytes_max)
        server = HttpServer(
            door.listen,
            dict,
            door.hosts,
            access=access,
            setting="serve.listen",
            application=lambda names: application(doors, names),
            certificate=None if door.tls is None else ServerCertificate(door.tls, "serve.tls", tell),
        )
        server.start()
        around.callback(server.close)
        for maintenance in (
            wiring.indexing(settings, tell),
            wiring.compacting(settings, tell),
            wiring.expiring(settings, tell),
        ):
            if maintenance is not None:
                around.enter_context(maintenance)
        end_loading()
        names = ", ".join(sorted(pushing.shapes))
        tell("serving", {"listen": door.listen, "port": server.port, "collections": names})
        while not stop.is_set() and not pushing.writer.wait(SLICE_S):
            pass
        if pushing.writer.failure is not None:
            raise pushing.writer.failure
        if not stop.is_set():
            raise InvariantViolated("the thread that writes the log ended without a reason")
        tell("stopping", {"offset": int(pushing.writer.checkpoint.next_offset) - 1})
    tell("stopped", {})

"""`cdcflow serve`: collections that programs write to over HTTP."""

from __future__ import annotations

import contextlib
import sys
import threading

from cdcflow.cli.lean import lean, loaded
from cdcflow.cli.options import DEFAULT_CONFIG, ConfigPath, Json
from cdcflow.config import load
from cdcflow.config.places import check_writable, log_places
from cdcflow.errors import InvariantViolated


def serve(config: ConfigPath = DEFAULT_CONFIG, json: Json = False) -> None:
    """Accept rows over HTTP until you stop it. SIGTERM or Ctrl-C finishes what was sent, a second one ends at once."""
    lean()
    from cdcflow import wiring
    from cdcflow.cli.daemon import telling_end
    from cdcflow.cli.events import event_lines, send_structlog_to
    from cdcflow.cli.signals import SLICE_S, obeying_signals
    from cdcflow.service.access import Access
    from cdcflow.service.http import HttpServer, check_installed

    settings = load(config)
    check_writable(log_places(settings))
    tell = event_lines(as_json=json)
    send_structlog_to(sys.stdout, as_json=json)
    check_installed()
    from cdcflow.service.push.web import Doors, application

    stop = threading.Event()
    with contextlib.ExitStack() as around:
        around.enter_context(telling_end(tell, "serving failed"))
        around.enter_context(obeying_signals(stop.set, tell))
        pushing = wiring.pushing(settings, tell)
        around.callback(pushing.writer.stop)
        pushing.writer.start()
        door = pushing.serve
        access = Access(door.tokens, setting="serve.tokens")
        asked, consumers = pushing.explorer, pushing.consumers
        doors = Doors(pushing.shapes, pushing.writer, access, asked, consumers, door.request_bytes_max)
        server = HttpServer(
            door.listen,
            dict,
            door.hosts,
            access=access,
            setting="serve.listen",
            application=lambda names: application(doors, names),
        )
        server.start()
        around.callback(server.close)
        for beside in (wiring.indexing(settings, tell), wiring.expiring(settings, tell)):
            if beside is not None:
                around.enter_context(beside)
        loaded()
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

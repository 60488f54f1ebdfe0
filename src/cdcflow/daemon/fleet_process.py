"""The process of `cdcflow fleet`: it watches a fleet, and serves its page."""

from __future__ import annotations

import contextlib
import threading
import time

from cdcflow.config import Fleet
from cdcflow.daemon.daemon import telling_end
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.interfaces.http_server import HttpServer, check_installed
from cdcflow.daemon.lean import end_loading
from cdcflow.daemon.signals import obeying_signals, wait_for
from cdcflow.fleet.http_member import HttpMember
from cdcflow.fleet.members import Outage
from cdcflow.fleet.pipelines import Pipeline, pipelines
from cdcflow.fleet.watch import FleetWatch
from cdcflow.http.access import Access
from cdcflow.http.certificate import ServerCertificate
from cdcflow.wiring.fleets import fleet_register


def fleet_watch(settings: Fleet) -> FleetWatch:
    """Return the watch over the members that these settings name; nothing is read yet.

    Raises:
        ConfigurationError: a register is in a bucket, and the client library is not installed.
    """
    registers = [fleet_register(one, f"registers[{n}]") for n, one in enumerate(settings.registers)]
    asked = [HttpMember(one, settings.every) for one in settings.members]
    return FleetWatch(registers, asked, settings.every)


def look_once(settings: Fleet) -> tuple[list[Pipeline], list[Outage]]:
    """Read the fleet once. Return its pipelines, and the registers and members that could not be read."""
    watch = fleet_watch(settings)
    watch.refresh()
    return pipelines(watch.members.current(), time.time()), watch.members.outages()


def serve(settings: Fleet, tell: OnEvent) -> None:
    """Serve the page until a signal ends it.

    Raises:
        ConfigurationError: the address or a token is unavailable, or libraries are not installed.
    """
    check_installed()
    from cdcflow.daemon.interfaces.fleet_web import FleetInterfaces, application

    stop = threading.Event()
    with contextlib.ExitStack() as around:
        around.enter_context(telling_end(tell, "fleet failed"))
        around.enter_context(obeying_signals(stop.set, tell))
        watch = fleet_watch(settings)
        access = Access(settings.tokens, setting="tokens", requests_per_second_max=settings.requests_per_second_max)
        doors = FleetInterfaces(watch, access)
        server = HttpServer(
            settings.listen,
            dict,
            settings.hosts,
            access=access,
            setting="listen",
            application=lambda names: application(doors, names),
            certificate=None if settings.tls is None else ServerCertificate(settings.tls, "tls", tell),
        )
        server.start()
        around.callback(server.close)
        watch.start()
        around.callback(watch.close)
        end_loading()
        tell("fleet page", {"listen": settings.listen, "port": server.port})
        wait_for(stop)
    tell("stopped", {})

"""The dev stack of `docker/compose.yaml` as processes on loopback, where no container engine runs.

Everything is read from the compose file: the services, their commands, variables, mounted files, health checks and what
each waits for. Only places are substituted, as an engine would by its networks and mounts:

    kafka:9092             a loopback address and port of this run
    /secrets, /log, /tmp   a folder of this run
    /opt/cdcflow           the environment that the tests run in

An image that is built here is run by the entry point that its Dockerfile says. Three ready-made ones (PostgreSQL,
MySQL, Kafka) are the servers of `tests/servers`, configured as the image's own start would have configured them. Where
Linux allows it, a process sees a root that is read-only except for its mounts, and has no capabilities.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from tests.servers.objects import versitygw
from tests.support.docker.compose_files import Model, conditions, one_shot
from tests.support.docker.services import PARTS, Part, Process, Room
from tests.support.polling import wait_until

from cdcflow.spark.jars import folder as jars_folder

PATIENCE_S = 600.0  # only so that a hang ends
OF_THE_IMAGES = {"/opt/cdcflow": sys.prefix, "/opt/jars/delta": str(jars_folder())}
"""Where the images built here have the paths that the tests have elsewhere."""


class Unhealthy(Exception):
    """A service did not become what another waits for."""


class Stack:
    """One run of the stack. A context manager: inside it services can be started, afterwards all are removed."""

    def __init__(self, project: Model) -> None:
        self.services: Mapping[str, Model] = project["services"]
        self.directory = Path(tempfile.mkdtemp(prefix="cdcflow-stack-"))
        self.directory.chmod(0o755)
        self.events: list[tuple[str, str]] = []
        """What happened in which order: started, healthy, completed, ended; and to whom."""
        self._net = f"127.{random.randrange(2, 250)}.{random.randrange(1, 250)}"
        self._addresses = {name: f"{self._net}.{n}" for n, name in enumerate(self.services, start=1)}
        self._ports: dict[tuple[str, int], str] = {}
        self._parts: dict[str, Part] = {}
        self._reached: dict[tuple[str, str], threading.Event] = {}
        self._given_up = threading.Event()
        self._failure: BaseException | None = None

    def __enter__(self) -> Self:
        for name, service in self.services.items():
            kind = PARTS.get(service["image"].partition(":")[0], Process)
            self._parts[name] = kind(self, name, service)
        return self

    def __exit__(self, *error: object) -> None:
        self._given_up.set()
        for part in self._parts.values():
            part.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def up(self, without: Collection[str] = ()) -> None:
        """Start every service once its dependencies are ready, and return when all are healthy.

        `without`: these not yet. The next call starts them, and none that was started before.

        Raises:
            Unhealthy: one ended; the message ends with its output.
            AssertionError: one never became healthy; the message ends with the outputs of all.
        """
        names = [n for n in self.services if n not in without and (n, "service_started") not in self._reached]
        for name in names:
            for state in ("service_started", "service_healthy", "service_completed_successfully"):
                self._reached[name, state] = threading.Event()
        with ThreadPoolExecutor(len(names)) as pool:
            brought = [pool.submit(self._bring_up, name) for name in names]
        if self._failure is not None:
            raise self._failure
        for done in brought:
            done.result()

    def down(self) -> dict[str, int]:
        """Stop what runs, as `docker compose down` does: who waits for another is stopped before it, also by way of
        one that has ended. Exit codes."""
        left = list(self.services)
        codes: dict[str, int] = {}
        while left:
            for name in [n for n in left if not any(n in conditions(self.services[other]) for other in left)]:
                left.remove(name)
                if self._parts[name].runs:
                    codes[name] = self.stop(name)
        return codes

    def stop(self, name: str) -> int:
        """SIGTERM, and its exit code."""
        code = self._parts[name].stop()
        self.events.append(("ended", name))
        return code

    def output(self, name: str) -> str:
        return self._parts[name].output()

    def part(self, name: str) -> Part:
        return self._parts[name]

    def volume(self, name: str) -> Path:
        """Where the content of a named volume is stored."""
        return self.directory / "volumes" / name

    def mounted(self, service: str, target: str) -> Path:
        """The files of a service at this path."""
        return self._parts[service].paths[target]

    # ── places ──────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, service: str, port: int, place: str) -> None:
        """This port of this service is at `place` (host:port)."""
        self._ports[service, port] = place

    def place(self, service: str, port: int) -> str:
        return self._ports.get((service, port), f"{self._addresses[service]}:{port}")

    def address(self, service: str) -> str:
        return self._addresses[service]

    def translated(self, service: str, text: str, paths: Mapping[str, Path | str]) -> str:
        """A command, variable or file of a service with the places of this run in it."""
        names = "|".join(sorted(map(re.escape, self.services), key=len, reverse=True))

        def placed(found: re.Match[str]) -> str:
            name = found[1] if found[1] in self.services else service  # or an address that means the service itself
            host, _, port = self.place(name, int(found[3])).partition(":")
            return f"{host}{found[2]}{port}"

        text = re.sub(rf"(?<![\w.-])({names}|127\.0\.0\.1|0\.0\.0\.0)([:/])(\d+)\b", placed, text)
        text = re.sub(rf"(^|--host=)({names})(?=$|\s)", lambda m: m[1] + self._host(m[2]), text)
        text = re.sub(r"(--port=)(\d+)\b", lambda m: m[1] + self.place(service, int(m[2])).rpartition(":")[2], text)
        known = {**OF_THE_IMAGES, **paths}
        wanted = "|".join(sorted(map(re.escape, known), key=len, reverse=True))
        return re.sub(rf"(?<![\w./-])({wanted})(?![\w.-])", lambda m: str(known[m[1]]), text)

    def _host(self, service: str) -> str:
        taken = [place for (name, _), place in self._ports.items() if name == service]
        return taken[0].partition(":")[0] if taken else self._addresses[service]

    def room(self, name: str, service: Model) -> Room:
        """The folders and files that a service mounts. The repository's files are copied with this run's places."""
        room = Room()
        own = self.directory / "services" / name
        for n, mount in enumerate(service.get("volumes") or ()):
            target, source = mount["target"], Path(mount["source"])
            if mount["type"] == "volume":
                room.paths[target] = self.volume(mount["source"])
                room.paths[target].mkdir(parents=True, exist_ok=True)
            else:
                room.paths[target] = own / f"mount{n}" / source.name
            if not mount.get("read_only"):
                room.writable.append(room.paths[target])
        for entry in service.get("tmpfs") or ():
            target = entry.partition(":")[0]
            room.paths[target] = own / f"tmpfs{target.replace('/', '-')}"
            room.paths[target].mkdir(parents=True)
            room.writable.append(room.paths[target])
        for mount in service.get("volumes") or ():
            if mount["type"] == "bind":
                self._copy(name, Path(mount["source"]), room.paths[mount["target"]], room)
        return room

    def _copy(self, name: str, source: Path, target: Path, room: Room) -> None:
        if source.is_dir():
            for inner in source.iterdir():
                self._copy(name, inner, target / inner.name, room)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.translated(name, source.read_text(), room.paths))

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _bring_up(self, name: str) -> None:
        try:
            for other, wanted in conditions(self.services[name]).items():
                self._wait(self._reached[other, wanted].is_set, f"{name}: {other} to be {wanted}")
            self.events.append(("started", name))
            part = self._parts[name]
            part.start()
            self._reached[name, "service_started"].set()
            if one_shot(self.services[name]):
                self._wait(lambda: not part.runs, f"{name} to end")
                if code := part.stop():
                    raise Unhealthy(f"{name} ended with {code}:\n{part.output()[-3000:]}")
                self.events.append(("completed", name))
                self._reached[name, "service_completed_successfully"].set()
            elif "healthcheck" in self.services[name]:
                self._wait(lambda: self._well(name), f"{name} to be healthy", look_s=0.3)
                self.events.append(("healthy", name))
                self._reached[name, "service_healthy"].set()
        except BaseException as error:
            self._failure = self._failure or error
            self._given_up.set()
            raise

    def _well(self, name: str) -> bool:
        part = self._parts[name]
        if not part.runs:
            raise Unhealthy(f"{name} ended by itself with {part.stop()}:\n{part.output()[-3000:]}")
        return part.well()

    def _wait(self, until: Callable[[], bool], what: str, look_s: float = 0.05) -> None:
        def holds() -> bool:
            if until():
                return True
            if self._given_up.is_set():
                raise Unhealthy(f"waited for {what} when something else failed")
            return False

        wait_until(holds, what, patience_s=PATIENCE_S, pause_max_s=look_s, more=self._outputs)

    def _outputs(self) -> str:
        return "\n".join(f"── {name}\n{part.output()[-800:]}" for name, part in self._parts.items())

    @property
    def programs(self) -> str:
        """The images' PATH."""
        store = versitygw()
        assert store is not None, "the stack's object store is built with Go, which is not here"
        return os.pathsep.join([str(store.parent), f"{sys.prefix}/bin", os.environ["PATH"]])

"""The dev stack of `docker/compose.yaml` as processes on loopback, where no container engine runs.

Everything comes from the compose file: which services there are, their commands, variables, mounted files, health
checks and what each waits for. Only places are put in, as an engine would by its networks and mounts:

    kafka:9092             a loopback address and port of this run
    /secrets, /log, /tmp   a folder of this run
    /opt/cdcflow           the environment that the tests run in

An image that is built here is run by the entry point that its Dockerfile says. Three that come ready (PostgreSQL,
MySQL, Kafka) are the servers of `cdcflow.testing`, told what the image's own start would have told them. Where Linux
allows it, a process sees a read-only root but for what it mounts, and has no capabilities.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from composed import Model, built_image, conditions, one_shot

from cdcflow.spark.jars import folder as jars_folder
from cdcflow.testing.debian import command as unpacked_command
from cdcflow.testing.debian import unpacked
from cdcflow.testing.kafka import KafkaBroker
from cdcflow.testing.mysql import MySQLServer
from cdcflow.testing.postgres import PostgresServer
from cdcflow.testing.servers import OrdinaryUser, Watcher, free_port

PATIENCE_S = 600.0  # only so that a hang ends
OF_THE_IMAGES = {"/opt/cdcflow": sys.prefix, "/opt/jars": str(jars_folder())}
"""Where the images built here have what the tests have elsewhere."""
NOT_KAFKAS = frozenset(("KAFKA_HEAP_OPTS",))


class Unhealthy(Exception):
    """A service did not become what another waits for."""


@dataclass
class Room:
    """Where one service finds things: its mounts, and whether it may write there."""

    paths: dict[str, Path] = field(default_factory=dict)
    writable: list[Path] = field(default_factory=list)


class Stack:
    """One run of the stack. A context manager: inside it can be brought up, afterwards nothing is left of it."""

    def __init__(self, project: Model, programs: Sequence[Path] = ()) -> None:
        self.services: Mapping[str, Model] = project["services"]
        self.directory = Path(tempfile.mkdtemp(prefix="cdcflow-stack-"))
        self.directory.chmod(0o755)
        self.events: list[tuple[str, str]] = []
        """What happened in which order: started, healthy, completed, ended; and to whom."""
        self._programs = programs
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

    def up(self) -> None:
        """Start every service when what it waits for has come, and return once all are well.

        Raises:
            Unhealthy: one ended or never became healthy; the message ends with its output.
        """
        for name in self.services:
            for state in ("service_started", "service_healthy", "service_completed_successfully"):
                self._reached[name, state] = threading.Event()
        with ThreadPoolExecutor(len(self.services)) as pool:
            brought = [pool.submit(self._bring_up, name) for name in self.services]
        if self._failure is not None:
            raise self._failure
        for done in brought:
            done.result()

    def down(self) -> dict[str, int]:
        """Stop what runs, as `docker compose down` does: who waits for another is stopped before it. Exit codes."""
        left = [name for name in self.services if self._parts[name].runs]
        codes: dict[str, int] = {}
        while left:
            free = [n for n in left if not any(n in conditions(self.services[other]) for other in left)]
            for name in free:
                codes[name] = self.stop(name)
                left.remove(name)
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
        """Where the content of a named volume lies."""
        return self.directory / "volumes" / name

    def mounted(self, service: str, target: str) -> Path:
        """What a service finds at this path."""
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
            name = found[1] if found[1] in self.services else service  # else an address that means the service itself
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
        """The folders and files that a service mounts. Files of ours are copied with the places of this run in them."""
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
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            if self._given_up.is_set():
                raise Unhealthy(f"waited for {what} when something else failed")
            if time.monotonic() > deadline:
                outputs = "\n".join(f"── {n}\n{p.output()[-800:]}" for n, p in self._parts.items())
                raise Unhealthy(f"waited {PATIENCE_S:.0f} s for {what}\n{outputs}")
            time.sleep(look_s)

    @property
    def programs(self) -> str:
        """PATH: what the images have."""
        return os.pathsep.join([*map(str, self._programs), f"{sys.prefix}/bin", os.environ["PATH"]])


class Part:
    """One service."""

    def __init__(self, stack: Stack, name: str, service: Model) -> None:
        self._stack, self._name, self._service = stack, name, service
        self._room = Room()

    @property
    def runs(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> int:
        """End it in good order. Its exit code; also of one that has ended."""
        raise NotImplementedError

    def close(self) -> None:
        """End it, however."""
        raise NotImplementedError

    def output(self) -> str:
        raise NotImplementedError

    def well(self) -> bool:
        """Run the health check once, as the compose file says it."""
        test = self._service["healthcheck"]["test"]
        kind, *words = test
        assert kind in ("CMD", "CMD-SHELL"), test
        command = words if kind == "CMD" else ["/bin/sh", "-c", *words]
        done = subprocess.run(
            [self._translated(word) for word in command],
            capture_output=True,
            timeout=60,
            env=self._environment(),
            cwd="/",
            check=False,
        )
        return done.returncode == 0

    def _translated(self, text: str) -> str:
        return self._stack.translated(self._name, text, self.paths)

    @property
    def paths(self) -> Mapping[str, Path]:
        """What it mounts, and where that is in this run."""
        return self._room.paths

    def _environment(self) -> dict[str, str]:
        return {"PATH": self._stack.programs, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent", "TZ": "UTC"}

    def _variables(self) -> dict[str, str]:
        return {k: self._translated(v) for k, v in (self._service.get("environment") or {}).items()}

    def _words(self) -> list[str]:
        return [self._translated(word) for word in self._service.get("command") or ()]


class Process(Part):
    """A service whose image is built here, or that is one program: run by its own command line."""

    def __init__(self, stack: Stack, name: str, service: Model) -> None:
        super().__init__(stack, name, service)
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        self._image = built_image(service)

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._room = self._stack.room(self._name, self._service)
        log = self._stack.directory / f"{self._name}.log"
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*confinement(self._room.writable), *self._command()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env=self._environment(),
            )
        self._watcher = Watcher(self._process.pid, "KILL", [self._stack.directory])

    def _command(self) -> list[str]:
        given = self._service.get("entrypoint")
        if given is None:
            assert self._image is not None, f"{self._name}: what its image runs is not known here"
            words = self._words() or [self._translated(word) for word in self._image.command]
            return [*self._image.entrypoint, *words]
        return [*(self._translated(word) for word in given), *self._words()]

    def _environment(self) -> dict[str, str]:
        address = self._stack.address(self._name)
        temporary = str(self._room.paths["/tmp"])  # noqa: S108  the container's
        found = super()._environment()
        if self._image is not None:
            path = {"PATH": found["PATH"]}
            found |= {k: self._translated(v) for k, v in self._image.environment.items()} | path
        # What the engine gives by itself: an address of its own, and /tmp.
        found |= {"SPARK_LOCAL_IP": address, "SPARK_LOCAL_DIRS": temporary, "TMPDIR": temporary}
        found |= {"JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}"}
        return {**found, **{k: os.environ[k] for k in ("JAVA_HOME",) if k in os.environ}, **self._variables()}

    def stop(self) -> int:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None
        return code

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
        if self._watcher is not None:
            self._watcher.dismiss()

    def output(self) -> str:
        log = self._stack.directory / f"{self._name}.log"
        return log.read_text(errors="replace") if log.exists() else ""


class Postgres(Part):
    """The image `postgres`: a database, an administrator's password, then every file of its folder of first scripts."""

    def __init__(self, stack: Stack, name: str, service: Model) -> None:
        super().__init__(stack, name, service)
        settings = dict(word[2:].split("=", 1) for word in service["command"][1:])
        self.server = PostgresServer(settings=settings)
        stack.take(name, 5432, f"127.0.0.1:{self.server.port}")

    @property
    def runs(self) -> bool:
        return self.server.is_running

    def start(self) -> None:
        self._room = self._stack.room(self._name, self._service)
        variables = self._variables()
        password = Path(variables["POSTGRES_PASSWORD_FILE"]).read_text()
        self.server.start()
        self.server.write_hba(
            "local all all trust",
            "host all postgres 127.0.0.1/32 trust",  # the tests' own sessions
            "host all all 127.0.0.1/32 scram-sha-256",
        )
        self.server.execute(f"ALTER ROLE postgres PASSWORD '{password}'")
        self.server.create_database(variables["POSTGRES_DB"])
        for script in sorted(self._room.paths["/docker-entrypoint-initdb.d"].iterdir()):
            assert script.suffix == ".sql", script
            self.server.psql(script.read_text(), variables["POSTGRES_DB"])

    def stop(self) -> int:
        self.server.stop()
        return 0

    def close(self) -> None:
        self.server.close()

    def output(self) -> str:
        return self.server.log_tail()

    def _environment(self) -> dict[str, str]:
        found = super()._environment()
        return {**found, "PATH": f"{self.server.bin_directory}{os.pathsep}{found['PATH']}"}


class MySQL(Part):
    """The image `mysql`: a database, then its first scripts, which say SQL through a function of the image."""

    def __init__(self, stack: Stack, name: str, service: Model) -> None:
        super().__init__(stack, name, service)
        self.server = MySQLServer("mysql", {})
        stack.take(name, 3306, f"127.0.0.1:{self.server.port}")

    @property
    def runs(self) -> bool:
        return self.server.is_running

    def start(self) -> None:
        self._room = self._stack.room(self._name, self._service)
        # What group_add is for: the server's user may read the secrets, others may not.
        user, secrets = OrdinaryUser.choose("MySQL"), self._room.paths["/secrets"]
        for path in (secrets, *secrets.iterdir()):
            if user.ids is not None:
                os.chown(path, -1, user.ids[1])
        words = (word.removeprefix("--").partition("=") for word in self._words()[1:])
        self.server.start(**{name.replace("-", "_"): value or "ON" for name, _, value in words})
        self.server.create_database(self._variables()["MYSQL_DATABASE"])
        for script in sorted(self._room.paths["/docker-entrypoint-initdb.d"].iterdir()):
            said = subprocess.run(
                ["bash", "-euc", f"docker_process_sql() {{ cat; }}; . {shlex.quote(str(script))}"],
                capture_output=True,
                text=True,
                check=True,
            )
            self.server.script(said.stdout)

    def stop(self) -> int:
        self.server.stop()
        return 0

    def close(self) -> None:
        self.server.close()

    def output(self) -> str:
        return self.server.log_tail()

    def _environment(self) -> dict[str, str]:
        found = super()._environment()
        if shutil.which("mysqladmin", path=found["PATH"]) is not None:
            return found
        programs = self._stack.directory / "mysql-programs"
        if not programs.exists():
            words = unpacked_command(unpacked("mysql-client-core", "sid"), "usr/bin/mysqladmin")
            programs.mkdir()
            (programs / "mysqladmin").write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (programs / "mysqladmin").chmod(0o755)
        return {**found, "PATH": f"{programs}{os.pathsep}{found['PATH']}"}


class Kafka(Part):
    """The image `apache/kafka`: KAFKA_A_B_C is the broker's setting a.b.c."""

    def __init__(self, stack: Stack, name: str, service: Model) -> None:
        super().__init__(stack, name, service)
        self._port = free_port()
        stack.take(name, 9092, f"127.0.0.1:{self._port}")
        stack.take(name, 9093, f"127.0.0.1:{free_port()}")
        self._broker: KafkaBroker | None = None

    @property
    def runs(self) -> bool:
        return self._broker is not None

    def start(self) -> None:
        self._room = self._stack.room(self._name, self._service)
        OrdinaryUser.choose("Kafka").own(self._room.paths["/var/lib/kafka/data"])
        settings = {
            key.removeprefix("KAFKA_").lower().replace("_", "."): value
            for key, value in self._variables().items()
            if key.startswith("KAFKA_") and key not in NOT_KAFKAS
        }
        broker = KafkaBroker(settings)
        broker.port = self._port
        self._broker = broker.__enter__()

    def stop(self) -> int:
        if self._broker is not None:
            self._broker.stop()
        return 0

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()

    def output(self) -> str:
        return "" if self._broker is None else self._broker.log_tail()


PARTS: Mapping[str, type[Part]] = {"postgres": Postgres, "mysql": MySQL, "apache/kafka": Kafka}


_CONFINED = """
n=$1; shift
while [ "$n" -gt 0 ]; do mount --bind "$1" "$1"; shift; n=$((n - 1)); done
mount -o remount,bind,ro /
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


def confinement(writable: Sequence[Path]) -> list[str]:
    """Words to put before a command, so that it sees a root that is read-only but for these folders, and has neither
    capabilities nor a way to new ones. None where Linux does not let us."""
    way = _namespace()
    return [*way, *_confined(writable)] if way else []


def _confined(writable: Sequence[Path]) -> list[str]:
    return ["/bin/sh", "-ec", _CONFINED, "sh", str(len(writable)), *map(str, writable)]


@functools.cache
def _namespace() -> tuple[str, ...]:
    ways = (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount"))
    return next((way for way in ways if _allowed([*way, *_confined(()), "true"])), ())


def _allowed(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False

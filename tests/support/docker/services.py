"""One service of the dev stack as processes: `stack` starts them and returns their addresses."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.debian import unpacked
from tests.servers.kafka import KafkaBroker
from tests.servers.mysql import MySQLServer
from tests.servers.postgres import PostgresServer
from tests.support.docker.compose_files import Model, built_image
from tests.support.docker.confinement import confinement

from cdcflow.demo.servers.cached import command as unpacked_command
from cdcflow.demo.servers.processes import OrdinaryUser, Watcher, free_port

if TYPE_CHECKING:
    from tests.support.docker.stack import Stack

NOT_KAFKAS = frozenset(("KAFKA_HEAP_OPTS",))
"""Variables of Kafka's image that are no settings of the broker."""


@dataclass
class Room:
    """Where one service finds things: its mounts, and whether it may write there."""

    paths: dict[str, Path] = field(default_factory=dict)
    writable: list[Path] = field(default_factory=list)


class Part(ABC):
    """One service."""

    def __init__(self, stack: Stack, name: str, service: Model) -> None:
        self._stack, self._name, self._service = stack, name, service
        self._room = Room()

    @property
    @abstractmethod
    def runs(self) -> bool: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> int:
        """End it in good order. Its exit code; also of one that has ended."""

    @abstractmethod
    def close(self) -> None:
        """End it, however."""

    @abstractmethod
    def output(self) -> str: ...

    def well(self) -> bool:
        """Run the health check once, as defined in the compose file."""
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
        """Its mounts, and where they are in this run."""
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
        # What the engine provides by itself: a separate address, and /tmp.
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
    """The image `mysql`: a database, then its first scripts, which run SQL through a function of the image."""

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
        for port in (9092, 9093):
            stack.take(name, port, f"127.0.0.1:{free_port()}")
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
        self._broker = KafkaBroker(settings)
        self._broker.format()
        self._broker.start(wait=False)

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
"""What runs the images that come ready, by their names; all else is a `Process`."""

"""A private Kafka broker on loopback: one node that is broker and controller.

Kafka's jars are those in `libs` of the folder that CDCFLOW_KAFKA names, otherwise those that a make target has fetched
into the cache (`cached`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from cdcflow.demo.servers.cached import cache
from cdcflow.demo.servers.processes import OrdinaryUser, ServerProcess, Watcher, free_port
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.sinks.kafka.topics import Admin, Topics

VERSION = "4.3.1"
PATIENCE_S = 180.0  # a machine may be very busy, and a test is not a measurement
SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "num.recovery.threads.per.data.dir": "1",
}


def cached_jars() -> Path:
    """Return the folder into which a make target fetches the jars."""
    return cache() / f"kafka-{VERSION}"


def jar_folder() -> Path:
    """Return the folder with the broker's jars.

    Raises:
        ConfigurationError: they are not on this machine; the message explains how to get them.
    """
    if named := os.environ.get("CDCFLOW_KAFKA"):
        if not any(Path(named, "libs").glob("*kafka_2.*.jar")):
            raise ConfigurationError(f"CDCFLOW_KAFKA names {named}, which has no libs/kafka_2.*.jar")
        return Path(named, "libs")
    if not is_whole(cached_jars()):
        raise ConfigurationError(
            "Apache Kafka 4 is not on this machine: name the folder that it was unpacked into in CDCFLOW_KAFKA, or run "
            "`make demo LOG=kafka` in a checkout of cdcflow, which fetches it"
        )
    return cached_jars()


def java() -> str:
    """Return the Java program that runs the broker.

    Raises:
        ConfigurationError: Java is not installed.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin/java") if home else "java")
    if program is None:
        raise ConfigurationError(
            "Apache Kafka needs Java 17 or newer, which is not on this machine: install it so that java is on PATH, or "
            "set JAVA_HOME"
        )
    return program


def is_whole(folder: Path) -> bool:
    """Return whether a fetch into this folder was completed: the jar that is checked is written last."""
    return any(folder.glob("scala-library-*.jar"))


class KafkaBroker(ServerProcess):
    """A private broker. A context manager: the broker runs inside the `with` block, and is gone afterwards.

    `settings` add to or replace `SETTINGS`.

    Raises:
        ConfigurationError: there is no Kafka here, no Java, or no user to run it as.
        SinkUnavailable: it did not start; the message has the end of its log.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        java_options: Sequence[str] = ("-Xmx512m", "-XX:+UseSerialGC"),
    ) -> None:
        self._user = OrdinaryUser.choose("Kafka")
        self._jars, self._java_program = jar_folder(), java()
        self._java_options = java_options
        # An id must not begin with a dash, which the tool would take for an option.
        self._cluster_id = uuid.uuid4().hex[:22]
        self.directory = Path(tempfile.mkdtemp(prefix="cdcflow-kafka-broker-"))
        self.log = self.directory / "broker.log"
        self._user.own(self.directory)
        self.directory.chmod(0o755)
        self.port, self._inside, controller = free_port(), free_port(), free_port()
        own = {
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"CLIENTS://127.0.0.1:{self.port},INSIDE://127.0.0.1:{self._inside},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"CLIENTS://127.0.0.1:{self.port},INSIDE://127.0.0.1:{self._inside}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        self._settings = {**SETTINGS, **own, **(settings or {})}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self) -> None:
        self.format()
        self.start()

    def format(self) -> None:
        """Prepare the storage, once, before the first start."""
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings.items()))
        self._user.own(self._properties)
        made = subprocess.run(  # noqa: S603  fixed program, no shell
            self._java(
                "kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", str(self._properties), quick=True
            ),
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
            **self._user.process(),
        )
        if made.returncode != 0:
            raise SinkUnavailable(f"formatting Kafka's storage failed: {(made.stderr or made.stdout).strip()[-2000:]}")

    def start(self) -> None:
        """Start the broker, and wait until it answers."""
        self._launch()
        self.wait_until_ready()

    def wait_until_ready(self, brokers: int = 1) -> None:
        """Wait until this node answers, and knows this many brokers."""
        deadline = time.monotonic() + PATIENCE_S
        quick = {"reconnect.backoff.max.ms": "200"}
        admin = Admin(Topics(f"127.0.0.1:{self._inside}", "none", quick, wait_s=1.0), "starting Kafka")
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            with contextlib.suppress(SinkUnavailable):
                if admin.brokers() >= brokers:
                    return
            time.sleep(0.05)
        raise SinkUnavailable(f"Kafka did not start; the end of {self.log}:\n{self.log_tail()}")

    def close(self) -> None:
        self._end(signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  fixed program, no shell
                self._java("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                **self._user.process(),
            )
        self._watcher = Watcher(self._process.pid, "KILL", [self.directory])

    def _java(self, program: str, *arguments: str, quick: bool = False) -> list[str]:
        options = ["-XX:TieredStopAtLevel=1", *self._java_options] if quick else self._java_options
        return [self._java_program, *options, "-cp", f"{self._jars}/*", program, *arguments]

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
        self._forget()

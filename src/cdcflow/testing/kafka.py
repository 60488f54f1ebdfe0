"""Real Kafka brokers on loopback, for tests and the demo: one node that is broker and controller."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cdcflow.spark.jars import fetched
from cdcflow.testing.debian import cache
from cdcflow.testing.servers import OrdinaryUser, Watcher, free_port

PACKAGES = ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
PATIENCE_S = 60.0
SETTINGS: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}


def jars() -> Path:
    """The folder with the broker's jars, fetched once; other users may read it."""
    return fetched(PACKAGES, cache() / "kafka-4.3.1")


class KafkaBroker:
    """A broker of one's own. A context manager: inside it runs, afterwards it is gone."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._user = OrdinaryUser.choose("Kafka")
        self._jars = jars()
        self.directory = Path(tempfile.mkdtemp(prefix="cdcflow-kafka-broker-"))
        self._user.own(self.directory)
        self.directory.chmod(0o755)
        self.port, controller = free_port(), free_port()
        places = {
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.directory / "data"),
        }
        self._settings = {**SETTINGS, **places, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "broker.log"

    def __enter__(self) -> KafkaBroker:
        try:
            self._format()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the broker and wait until it answers."""
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
        deadline = time.monotonic() + PATIENCE_S
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=1)
                return
        raise RuntimeError(f"Kafka did not start; the end of {self.log}:\n{self.log_tail()}")

    def stop(self) -> None:
        """Stop it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _format(self) -> None:
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings.items()))
        self._user.own(self._properties)
        # An id must not begin with a dash, which the tool would take for an option.
        cluster = uuid.uuid4().hex[:22]
        made = subprocess.run(  # noqa: S603  fixed program, no shell
            self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)),
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
            **self._user.process(),
        )
        if made.returncode != 0:
            raise RuntimeError(f"formatting Kafka's storage failed: {(made.stderr or made.stdout).strip()[-2000:]}")

    def _java(self, program: str, *arguments: str) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin/java") if home else "java"
        return [java, "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{self._jars}/*", program, *arguments]

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None


__all__ = ["KafkaBroker", "jars"]

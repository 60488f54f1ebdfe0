"""Real Kafka brokers on loopback, for tests and the demo: one node that is broker and controller, or several.

The jars come from Maven through Spark's resolver, into the cache, once: `python -m cdcflow.testing.kafka`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import PartitionMetadata

from cdcflow.testing.debian import cache
from cdcflow.testing.servers import OrdinaryUser, Watcher, free_port

PACKAGES = ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
_IN_PYSPARK = "scala-library-2.13.*.jar"  # Spark's resolver leaves out what Spark itself has
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


def jars() -> Path:
    """The folder with the broker's jars, fetched once; other users may read it.

    Raises:
        RuntimeError: they cannot be fetched here.
    """
    place = cache() / "kafka-4.3.1"
    if any(place.glob(_IN_PYSPARK)):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    # Only one process fetches, in one of its own: the resolver brings a JVM that would stay.
    with place.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not any(place.glob(_IN_PYSPARK)):
            fetch = [sys.executable, "-m", "cdcflow.testing.kafka", str(place)]
            done = subprocess.run(fetch, capture_output=True, text=True, check=False)  # noqa: S603  our own module
            if done.returncode != 0:
                raise RuntimeError(f"Kafka's jars cannot be fetched: {done.stderr.strip()[-2000:]}")
    return place


def fetch(place: Path) -> None:
    """Put the jars into a folder."""
    import pyspark

    from cdcflow.spark.jars import fetched

    fetched(PACKAGES, place)
    for jar in (Path(pyspark.__file__).parent / "jars").glob(_IN_PYSPARK):
        shutil.copy(jar, place / f".{jar.name}")
        (place / f".{jar.name}").rename(place / jar.name)


class KafkaBroker:
    """A broker of one's own. A context manager: inside it runs, afterwards it is gone.

    `settings` add to or replace `SETTINGS`. `protocol` is what clients speak: PLAINTEXT, or SASL_SSL with the settings
    for it. `advertised` is the port that clients are told, where a proxy is between. `quorum` are the nodes'
    controller ports by their numbers, where there are several (`KafkaCluster`).
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        protocol: str = "PLAINTEXT",
        advertised: int | None = None,
        node: int = 1,
        quorum: Mapping[int, int] | None = None,
        cluster_id: str | None = None,
        java_options: Sequence[str] = ("-Xmx512m", "-XX:+UseSerialGC"),
    ) -> None:
        self._user = OrdinaryUser.choose("Kafka")
        self._jars = jars()
        self._java_options = java_options
        # An id must not begin with a dash, which the tool would take for an option.
        self._cluster_id = cluster_id or uuid.uuid4().hex[:22]
        self.node = node
        self.directory = Path(tempfile.mkdtemp(prefix="cdcflow-kafka-broker-"))
        self._user.own(self.directory)
        self.directory.chmod(0o755)
        self.port, self._inside = free_port(), free_port()
        quorum = quorum or {node: free_port()}
        copies = str(min(3, len(quorum)))
        own = {
            "node.id": str(node),
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in quorum.items()),
            "listeners": f"CLIENTS://127.0.0.1:{self.port},INSIDE://127.0.0.1:{self._inside},"
            f"CONTROLLER://127.0.0.1:{quorum[node]}",
            "advertised.listeners": f"CLIENTS://127.0.0.1:{advertised or self.port},INSIDE://127.0.0.1:{self._inside}",
            "listener.security.protocol.map": f"CLIENTS:{protocol},INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "2" if len(quorum) > 2 else "1",
        }
        self._settings = {**SETTINGS, **own, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        return self.directory / "broker.log"

    def __enter__(self) -> Self:
        try:
            self.format()
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

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
            raise RuntimeError(f"formatting Kafka's storage failed: {(made.stderr or made.stdout).strip()[-2000:]}")

    def start(self, *, wait: bool = True) -> None:
        """Start the broker, and wait until it answers."""
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
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self, brokers: int = 1) -> None:
        """Wait until this node answers, and knows of so many brokers."""
        deadline = time.monotonic() + PATIENCE_S
        inside = f"127.0.0.1:{self._inside}"
        admin = AdminClient({"bootstrap.servers": inside, "log_level": 0, "reconnect.backoff.max.ms": 200})
        while time.monotonic() < deadline and self._process is not None and self._process.poll() is None:
            with contextlib.suppress(KafkaException):
                if len(admin.list_topics(timeout=1).brokers) >= brokers:
                    return
            time.sleep(0.05)
        raise RuntimeError(f"Kafka did not start; the end of {self.log}:\n{self.log_tail()}")

    def stop(self) -> None:
        """Stop it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: what it had in memory is gone."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it holds its connections, and says nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _java(self, program: str, *arguments: str, quick: bool = False) -> list[str]:
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin/java") if home else "java"
        options = ["-XX:TieredStopAtLevel=1", *self._java_options] if quick else self._java_options
        return [java, *options, "-cp", f"{self._jars}/*", program, *arguments]

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None


class KafkaCluster:
    """Several brokers that are one cluster, each a controller too. A context manager, as a broker is."""

    def __init__(self, nodes: int = 3, settings: Mapping[str, str] | None = None) -> None:
        quorum = {node: free_port() for node in range(1, nodes + 1)}
        cluster_id = uuid.uuid4().hex[:22]
        self.brokers = [
            KafkaBroker(
                settings,
                node=node,
                quorum=quorum,
                cluster_id=cluster_id,
                java_options=("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            )
            for node in quorum
        ]

    @property
    def address(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def broker(self, node: int) -> KafkaBroker:
        """The broker with this number."""
        return next(broker for broker in self.brokers if broker.node == node)

    def leader(self, topic: str) -> KafkaBroker:
        """Who leads the first partition of a topic, as the brokers say: one that was killed, until they know of it."""
        deadline = time.monotonic() + PATIENCE_S
        while (leader := self._partition(topic).leader) < 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"nobody leads topic {topic}")
            time.sleep(0.1)
        return self.broker(leader)

    def preferred(self, topic: str) -> KafkaBroker:
        """Who is to lead it when all are there: the first of those that have a copy."""
        return self.broker(self._partition(topic).replicas[0])

    def in_sync(self, topic: str) -> set[int]:
        """The numbers of the brokers whose copy of it has all that was acknowledged."""
        return set(self._partition(topic).isrs)

    def _partition(self, topic: str) -> PartitionMetadata:
        return self._admin().list_topics(topic, timeout=30).topics[topic].partitions[0]

    def _admin(self) -> AdminClient:
        # A new one each time: one that lives on asks those that are dead again.
        running = [broker.address for broker in self.brokers if broker.is_running]
        return AdminClient({"bootstrap.servers": ",".join(running), "log_level": 0})

    def __enter__(self) -> Self:
        try:
            for broker in self.brokers:
                broker.format()
            for broker in self.brokers:
                broker.start(wait=False)
            for broker in self.brokers:
                broker.wait_until_ready(len(self.brokers))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()


__all__ = ["KafkaBroker", "KafkaCluster", "jars"]

if __name__ == "__main__":
    fetch(Path(sys.argv[1])) if len(sys.argv) > 1 else print(f"Apache Kafka: {jars()}")  # noqa: T201

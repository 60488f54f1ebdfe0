"""The demo's Kafka broker with operations for tests: stop, kill and halt it; clusters of several; other listeners.

The jars are fetched from Maven through Spark's resolver, into the cache, once: `python -m tests.servers.kafka`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import PartitionMetadata
from tests.support.polling import wait_for

from cdcflow.demo.servers import kafka
from cdcflow.demo.servers.kafka import PATIENCE_S, VERSION, cached_jars, is_whole, jar_folder
from cdcflow.demo.servers.processes import free_port

ROOT = Path(__file__).parents[2]
PACKAGES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")
# A broker of a test ends before it would profit from code that is compiled well.
CHEAP = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_IN_PYSPARK = "scala-library-2.13.*.jar"  # Spark's resolver skips what Spark itself has


def jars() -> Path:
    """The folder with the broker's jars, fetched once; other users may read it.

    Raises:
        RuntimeError: they cannot be fetched here.
    """
    place = cached_jars()
    if os.environ.get("CDCFLOW_KAFKA") or is_whole(place):
        return jar_folder()
    place.parent.mkdir(parents=True, exist_ok=True)
    # Only one process fetches, in a separate process: the resolver brings a JVM that would stay.
    with place.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not is_whole(place):
            fetching = [sys.executable, "-m", "tests.servers.kafka", str(place)]
            done = subprocess.run(fetching, capture_output=True, text=True, check=False, cwd=ROOT)
            if done.returncode != 0:
                raise RuntimeError(f"Kafka's jars cannot be fetched: {done.stderr.strip()[-2000:]}")
    return place


def fetch(place: Path) -> None:
    """Copy the jars into a folder."""
    import pyspark

    from cdcflow.spark.jars import fetch_packages

    fetch_packages(PACKAGES, place)
    for jar in (Path(pyspark.__file__).parent / "jars").glob(_IN_PYSPARK):
        shutil.copy(jar, place / f".{jar.name}")
        (place / f".{jar.name}").rename(place / jar.name)


class KafkaBroker(kafka.KafkaBroker):
    """A private broker. A context manager: inside it the broker runs, afterwards it is removed.

    `settings` add to or replace the starter's. `protocol` is what clients speak: PLAINTEXT, or SASL_SSL with the
    settings for it. `advertised` is the port that is reported to clients, where a proxy is between. `quorum` are the
    nodes' controller ports by their numbers, where there are several (`KafkaCluster`).
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
        java_options: Sequence[str] = ("-Xmx512m", *CHEAP),
    ) -> None:
        jars()
        super().__init__(java_options=java_options)
        self._cluster_id = cluster_id or self._cluster_id
        self.node = node
        quorum = quorum or {node: free_port()}
        copies = str(min(3, len(quorum)))
        self._settings |= {
            "node.id": str(node),
            "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{port}" for n, port in quorum.items()),
            "listeners": f"CLIENTS://127.0.0.1:{self.port},INSIDE://127.0.0.1:{self._inside},"
            f"CONTROLLER://127.0.0.1:{quorum[node]}",
            "advertised.listeners": f"CLIENTS://127.0.0.1:{advertised or self.port},INSIDE://127.0.0.1:{self._inside}",
            "listener.security.protocol.map": f"CLIENTS:{protocol},INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "2" if len(quorum) > 2 else "1",
            **(settings or {}),
        }

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the broker, and wait until it answers."""
        self._launch()
        if wait:
            self.wait_until_ready()

    def stop(self) -> None:
        """Stop it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: its memory is lost."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it holds its connections, and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


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
                java_options=("-Xmx256m", *CHEAP),
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
        """The leader of a topic's first partition, as the brokers report it: a killed one, until they notice."""
        leader = wait_for(
            lambda: self._partition(topic).leader, lambda node: node >= 0, f"a leader of {topic}", patience_s=PATIENCE_S
        )
        return self.broker(leader)

    def preferred(self, topic: str) -> KafkaBroker:
        """The preferred leader if all brokers are up: the first of those that have a copy."""
        return self.broker(self._partition(topic).replicas[0])

    def in_sync(self, topic: str) -> set[int]:
        """The numbers of the brokers whose copy of it has all that was acknowledged."""
        return set(self._partition(topic).isrs)

    def _partition(self, topic: str) -> PartitionMetadata:
        return self._admin().list_topics(topic, timeout=30).topics[topic].partitions[0]

    def _admin(self) -> AdminClient:
        # A new one each time: a long-lived one keeps contacting brokers that are dead again.
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
    fetch(Path(sys.argv[1])) if len(sys.argv) > 1 else print(f"Apache Kafka: {jars()}")

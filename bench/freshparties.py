"""fresh, who brings changes into tables: `cdcflow run` with merges, or Debezium and a MERGE in a stream by Spark.

PostgreSQL ──▶ cdcflow run, with merge.every ─────────────────────────────▶ tables
PostgreSQL ──▶ Debezium's engine ──JSON──▶ Kafka ──▶ Spark, foreachBatch ──▶ tables     in a folder only
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.kafka import KafkaBroker
from tests.servers.objects import ACCESS_KEY, SECRET_KEY, ObjectServer
from tests.support.tables.catalogs import catalog_of

from bench import brokers, peers
from bench.freshrun import TABLES, Party, Place, fill
from bench.harness import Child, Failed, tell
from bench.mergeparties import Party as Session
from bench.server import PUBLICATION, SLOT, Server, settings
from cdcflow.config.logs import StoreAccess
from cdcflow.daemon.child_process import list_tree
from cdcflow.log.maintenance import state_files

LOADED_WITHIN_S = 3600.0
STREAM = "Debezium JSON, a stream's MERGE"
LONG = {"max_wal_size": "1GB", "checkpoint_timeout": "5min"}
"""Settings of the server: in half an hour its log would fill memory that holds temporary files."""
FOREVER = 1 << 40
"""More changes than any run has."""

_JSON = {
    "decimal_handling_mode": "string",
    "max_batch_size": "8192",
    "max_queue_size": "65536",
    "poll_interval_ms": "5",
}
_PRODUCER = {**brokers.PRODUCER, "linger.ms": "5", "batch.size": "524288", "compression.type": "lz4"}

Settings = Mapping[str, object]


@contextmanager
def cdcflow(
    table_format: str, place: str, rows: int, merge: Settings, log: Settings, transport: str
) -> Iterator[Party]:
    """`cdcflow run`, in a process as users have it, once it has loaded the tables. `merge`, `log`: settings in addition
    to those that it needs."""
    with tempfile.TemporaryDirectory(prefix="fresh-") as folder, ExitStack() as stack:
        server, room = stack.enter_context(Server(transport, **LONG)), Path(folder)
        fill(server, rows)
        where = stack.enter_context(_placed(table_format, place, room, server))
        config = {
            **settings(server, room / "log"),
            "log": {"path": str(room / "log"), **log},
            "merge": {**where.merge, **merge},
        }
        daemon = stack.enter_context(_daemon(room, config))
        _wait_for_load(daemon, room / "log", rows * TABLES)

        def check() -> None:
            if not daemon.is_alive:
                daemon.outcome()
                raise Failed("cdcflow ended")

        def cycle_s() -> float | None:
            found: float | None = (state_files.of_merge(room / "log") or {}).get("seconds")
            return found

        yield Party(server, room, rows, table_format, where, lambda: list_tree(daemon.pid), cycle_s, check)


@contextmanager
def _daemon(room: Path, config: Settings) -> Iterator[Child]:
    file = room / "cdcflow.yaml"
    file.write_text(json.dumps(config))  # YAML has JSON in it
    daemon = Child([sys.executable, "-m", "cdcflow", "run", "--config", file], to_nowhere=True)
    try:
        yield daemon
        daemon.ask_to_end()
        daemon.outcome()
    finally:
        if daemon.is_alive:
            daemon.kill()


def _wait_for_load(daemon: Child, log: Path, rows: int) -> None:
    began = time.monotonic()
    while (state_files.of_merge(log) or {}).get("offset", 0) < rows:
        if not daemon.is_alive:
            daemon.outcome()
            raise Failed("cdcflow ended before the tables were loaded")
        if time.monotonic() - began > LOADED_WITHIN_S:
            raise Failed(f"the tables were not loaded in {LOADED_WITHIN_S:g} s: {state_files.of_merge(log)}")
        time.sleep(0.2)
    tell(f"    loaded in {time.monotonic() - began:.0f} s")


@contextmanager
def _placed(table_format: str, place: str, room: Path, server: Server) -> Iterator[Place]:
    names = [f"t{number}" for number in range(TABLES)]
    merge: dict[str, object] = {"format": table_format, "engine": "local"}
    with ExitStack() as stack:
        if place == "folder":
            root, options = str(room / "lake"), {}
        else:
            store = stack.enter_context(ObjectServer())
            objects = store.objects("lake").model_dump(mode="json", include=set(StoreAccess.model_fields))
            root = "s3://lake/lake"
            merge["objects"] = {name: value for name, value in objects.items() if value is not None}
            options = _store_options(table_format, store)
        merge["warehouse"] = root
        if table_format == "delta":
            yield Place(merge, tuple(f"{root}/public/{name}" for name in names), options)
            return
        if place == "folder":
            uri = f"sqlite:///{root}/_cdcflow_catalog.db"
        else:
            catalog = merge["catalog"] = stack.enter_context(catalog_of("sql", root, server))
            uri = catalog["uri"].replace("jdbc:postgresql://", "postgresql+psycopg://postgres@")
        yield Place(merge, tuple(f"public.{name}" for name in names), {**options, "type": "sql", "uri": uri})


def _store_options(table_format: str, store: ObjectServer) -> dict[str, str]:
    keys = {"access": ACCESS_KEY, "secret": SECRET_KEY}
    if table_format == "delta":
        return {
            "AWS_ENDPOINT_URL": store.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": keys["access"],
            "AWS_SECRET_ACCESS_KEY": keys["secret"],
        }
    return {
        "s3.endpoint": store.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": keys["access"],
        "s3.secret-access-key": keys["secret"],
    }


# ── the peer ────────────────────────────────────────────────────────────────────────────────────────────────


class Stream:
    """Debezium and Spark. `begin` (again) with a trigger before a run."""

    def __init__(self, party: Party, session: Session) -> None:
        self.party = party
        self._session = session

    def begin(self, trigger_s: float) -> None:
        self._session.ask("stop")
        self._session.ask("start", trigger_s=trigger_s)


@contextmanager
def stream(table_format: str, rows: int) -> Iterator[Stream | None]:
    """The peer, once its tables are loaded; `None` if Debezium is unavailable here."""
    if peers.debezium_classes() is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="fresh-") as folder, ExitStack() as stack:
        server, room = stack.enter_context(Server("tcp")), Path(folder)
        broker = stack.enter_context(KafkaBroker(java_options=("-Xmx1g",)))
        fill(server, rows)
        topics = [brokers.made(broker, f"bench.public.t{number}") for number in range(TABLES)]
        target = room / "lake" / "shop"  # `table_name` finds the catalog above a folder of this name
        target.mkdir(parents=True)
        given = {"brokers": broker.address, "topics": topics, "target": str(target), "rows": rows}
        session = Session(STREAM, None, room / "scratch", table_format, module="freshpeer", **given)
        stack.callback(session.close)
        tell(f"    loaded in {session.ask('load')['seconds']:.0f} s")
        engine = stack.enter_context(_debezium(server, broker))

        batches = _Batches(session)

        def check() -> None:
            if not engine.is_alive:
                engine.outcome()
                raise Failed("Debezium ended")
            if batches.failure is not None:
                raise Failed(f"a stream ended: {batches.failure}")

        def processes() -> Iterator[int]:
            return itertools.chain(list_tree(engine.pid), list_tree(session.pid))

        where = _place_of_stream(table_format, room)
        yield Stream(Party(server, room, rows, table_format, where, processes, batches.cycle_s, check), session)


class _Batches:
    """What a session reports of its streams' batches, while a run is measured."""

    EVERY_S = 2.0

    def __init__(self, session: Session) -> None:
        self.failure: str | None = None
        self._session = session
        self._at, self._seconds = 0.0, 0.0

    def cycle_s(self) -> float | None:
        if time.monotonic() - self._at >= self.EVERY_S:
            found = self._session.ask("check")
            self._at, self._seconds, self.failure = time.monotonic(), found["batch_s"], found["failed"]
        return self._seconds or None


def _place_of_stream(table_format: str, room: Path) -> Place:
    names = [f"t{number}" for number in range(TABLES)]
    if table_format == "delta":
        return Place({}, tuple(f"{room}/lake/shop/{name}" for name in names), {})
    uri = f"sqlite:///{room}/lake/_cdcflow_catalog.db"
    return Place({}, tuple(f"shop.{name}" for name in names), {"type": "sql", "uri": uri})


@contextmanager
def _debezium(server: Server, broker: KafkaBroker) -> Iterator[Child]:
    """Debezium's engine, reading its slot, and a KafkaProducer."""
    tables = ", ".join(f"t{number}" for number in range(TABLES))
    server.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {tables}")
    server.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
    options = {**_JSON, **brokers.produced(broker, _PRODUCER), "topic_prefix": "bench", "bench_seconds": "36000"}
    command = peers.debezium_command(server.port, FOREVER, "json-plain", **options)
    assert command is not None
    engine = Child(command)
    try:
        server.until_read(engine)
        yield engine
    finally:
        engine.kill()

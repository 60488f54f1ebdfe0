"""The dev stack, brought up as `docker/compose.yaml` says, as processes: from seed data to merged tables."""

from __future__ import annotations

import gc
import json
import math
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.docker.compose_files import COMPOSE, Model, conditions, one_shot, understood
from tests.support.docker.services import MySQL, Postgres
from tests.support.docker.stack import Stack
from tests.support.polling import wait_until

from cdcflow.config import load
from cdcflow.demo import flights, proof
from cdcflow.demo.databases import DemoSource, Digest
from cdcflow.demo.mysql import MySQL as MySQLSource
from cdcflow.demo.postgres import Postgres as PostgresSource
from cdcflow.log.fold.fold import FoldedRow
from cdcflow.model.table import TableId
from cdcflow.spark.cuts import CutsTable, read_cut
from cdcflow.testing.folded import fold_log
from cdcflow.wiring import log_reader

pytestmark = [
    pytest.mark.long,  # two databases, a broker, a store, and a Spark of five processes
    pytest.mark.postgres,
    pytest.mark.mysql,
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
VARIABLES = {"CDCFLOW_SEED_ROWS": "3000", "CDCFLOW_LOAD_PER_SECOND": "10"}
MERGED = ("merge-postgres", "merge-mysql", "verify-postgres", "verify-mysql")
"""The merges, and what waits for them."""
PATIENCE_S = 600.0  # only so that a hang ends

Rows = Mapping[str, Mapping[tuple[Any, ...], Mapping[str, Any]]]


@dataclass
class Ran:
    """The results of one run of the stack, from `up` to `down`."""

    services: Mapping[str, Model]
    events: list[tuple[str, str]] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    """The command lines of all that ran on this machine while the stack was up."""
    codes: dict[str, int] = field(default_factory=dict)
    in_postgres: Rows = field(default_factory=dict)
    in_log: Rows = field(default_factory=dict)
    bucket: list[str] = field(default_factory=list)
    """The manifests in the object store."""
    sealed: list[str] = field(default_factory=list)
    """The manifests in the history of the log in Kafka."""
    verdicts: dict[str, list[proof.Verdict]] = field(default_factory=dict)
    """Each database compared with its tables in the warehouse, by code that `cdcflow verify` does not use."""
    verified: dict[str, set[str]] = field(default_factory=dict)
    """The tables that each capture's status says were found equal."""


@pytest.fixture(scope="module")
def ran(spark: Any) -> Iterator[Ran]:
    """Up but for the merges; the load stops; merges too come up, and tables to where it stopped; verified; down.

    So each merge has everything to do at once, and once: most of what it costs is the beginning.
    """
    project = understood(COMPOSE, VARIABLES)
    with Stack(project) as stack:
        found = Ran(project["services"])
        stack.up(without=MERGED)
        postgres, mysql = stack.part("postgres"), stack.part("mysql")
        assert isinstance(postgres, Postgres)
        assert isinstance(mysql, MySQL)
        sources: Mapping[str, DemoSource] = {
            "postgres": PostgresSource(postgres.server),
            "mysql": MySQLSource("mysql", mysql.server),
        }
        for name, source in sources.items():
            written(source)
            found.codes[f"load-{name}"] = stack.stop(f"load-{name}")
        newest = {name: captured(stack, f"capture-{name}", source) for name, source in sources.items()}
        stack.up()
        found.commands = command_lines()
        for name, source in sources.items():
            warehouse = stack.volume("warehouse") / name
            merged(spark, warehouse, newest[name])
            found.verdicts[name] = proof.verdicts(
                source, read_cut(spark, warehouse), flights.TABLES, proof.target_digest
            )
            known = status_of(stack, f"capture-{name}")["verified"]
            found.verified[name] = {table for table, kinds in known.items() if "at" in kinds["tables"]}
        found.in_postgres = rows_of(postgres)
        log = fold_log(log_reader(load(stack.mounted("capture-postgres", "/etc/cdcflow/cdcflow.yaml"))))
        found.in_log = {t: {k: whole(row) for k, row in log[TableId("public", t)].items()} for t in flights.TABLES}
        found.sealed = [str(path) for path in stack.volume("history").rglob("segment.json")]
        found.bucket = [str(path) for path in stack.volume("objects").rglob("segment.json")]
        found.codes |= stack.down()
        found.events = stack.events
        found.outputs = {name: stack.output(name) for name in found.services}
        found.secrets = {
            path.name: path.read_text()
            for path in stack.volume("secrets").iterdir()
            if path.suffix != ".pem" or path.name == "mysql-key.pem"
        }
    yield found
    gc.collect()


def test_every_service_waits_for_its_dependencies_in_the_compose_file(ran: Ran) -> None:
    """A capture that starts before its tables exist, or a merge before its log, would end by itself on a slow
    machine.
    """
    came = {"service_started": "started", "service_healthy": "healthy", "service_completed_successfully": "completed"}
    waits = [
        (ran.events.index((came[wanted], other)), ran.events.index(("started", name)), f"{name} for {other}")
        for name, service in ran.services.items()
        for other, wanted in conditions(service).items()
    ]
    assert len(waits) > 10
    assert [what for came_at, started_at, what in waits if came_at > started_at] == []


def test_every_health_check_passed(ran: Ran) -> None:
    """A check with a wrong path or port would block everything that waits for it, indefinitely."""
    checked = {name for name, service in ran.services.items() if "healthcheck" in service}
    assert {name for what, name in ran.events if what == "healthy"} == checked
    of_databases = {f"{what}{name}" for what in ("", "capture-", "merge-") for name in ("postgres", "mysql")}
    assert checked >= {*of_databases, "kafka", "objects"}


def test_log_of_postgres_holds_the_rows_of_the_database(ran: Ran) -> None:
    """Seed and load, backfilled and captured into Kafka: row by row."""
    for table in flights.TABLES:
        assert len(ran.in_postgres[table]) > 10, table
        assert ran.in_log[table] == ran.in_postgres[table], table


@pytest.mark.parametrize(("database", "schema"), [("postgres", "public"), ("mysql", "airports")])
def test_merged_tables_hold_the_rows_of_the_database(ran: Ran, database: str, schema: str) -> None:
    """The whole way, through the standalone master and worker: what users start the stack to see."""
    verdicts = ran.verdicts[database]
    assert {verdict.table for verdict in verdicts} == {f"{schema}.{table}" for table in flights.TABLES}
    assert [verdict.table for verdict in verdicts if not verdict.equal] == []


@pytest.mark.parametrize(("database", "schema"), [("postgres", "public"), ("mysql", "airports")])
def test_verify_reports_that_source_and_tables_agree(ran: Ran, database: str, schema: str) -> None:
    """What users see at the end of `docker compose up`. Other code has just proven it of the same tables."""
    assert ("completed", f"verify-{database}") in ran.events  # it would not be, had it ended with another code than 0
    said = ran.outputs[f"verify-{database}"]
    rows = [line.split() for line in said.splitlines() if line.startswith(f"{schema}.") and " tables " in line]
    assert {name: (against, verdict) for name, against, verdict, *_ in rows} == {
        f"{schema}.{table}": ("tables", "equal") for table in flights.TABLES
    }
    assert said.splitlines()[-1].startswith("source and copy agree through "), said
    assert ran.verified[database] == {f"{schema}.{table}" for table in flights.TABLES}


def test_each_log_was_stored_where_the_stack_promises(ran: Ran) -> None:
    """Tables would also be right if read from a local folder: then neither Kafka nor the object store would have been
    tested.
    """
    stretches = sorted(tuple(map(int, Path(path).parent.name.split("-"))) for path in ran.bucket)
    assert [first for first, _ in stretches] == [1, *(last + 1 for _, last in stretches[:-1])]
    assert len(ran.sealed) > 0


def test_load_has_written_to_both_databases(ran: Ran) -> None:
    """Without it everything above would be shown on tables that do not change."""
    for name in ("load-postgres", "load-mysql"):
        written = json.loads(ran.outputs[name].splitlines()[-1])
        assert sum(written.values()) > 3, name


def test_no_password_shows_in_a_command_line_or_an_output(ran: Ran) -> None:
    """Passwords come as files, so that neither `docker inspect`, `docker top` nor `docker logs` shows one."""
    assert len(ran.secrets) == 10
    for name in (f"{what}-{database}" for what in ("capture", "merge") for database in ("postgres", "mysql")):
        assert any(f"{name}.yaml" in command for command in ran.commands), name
    for name, secret in ran.secrets.items():
        assert [c for c in ran.commands if secret in c] == [], name
        assert [service for service, output in ran.outputs.items() if secret in output] == [], name


def test_everything_ends_in_good_order(ran: Ran) -> None:
    """`docker compose down` must not have to kill: services that wait for others end first, and daemons end with 0."""
    ended = [name for what, name in ran.events if what == "ended"]
    assert sorted(ended) == sorted(name for name, service in ran.services.items() if not one_shot(service))
    for name, other in waits_for(ran.services):
        if name in ended and other in ended:
            assert ended.index(name) < ended.index(other), f"{name}, {other}"
    for name in (f"{what}-{database}" for what in ("capture", "load", "merge") for database in ("postgres", "mysql")):
        assert ran.codes[name] == 0, f"{name}: {ran.outputs[name][-1000:]}"


def waits_for(services: Mapping[str, Model]) -> set[tuple[str, str]]:
    """Which service waits for which, also indirectly."""
    found = {(name, other) for name, service in services.items() for other in conditions(service)}
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


# ── looking ─────────────────────────────────────────────────────────────────────────────────────────────────────


def written(source: DemoSource) -> None:
    """Wait until a load has changed the flights of its database several times."""
    columns = source.columns("flights")
    seen: set[Digest] = set()

    def often() -> bool:
        seen.add(source.digest("flights", columns))
        return len(seen) > 5

    wait(often, f"the load on {source.schema} to write")


def captured(stack: Stack, daemon: str, source: DemoSource) -> int:
    """Wait until a daemon's log has all that its source has now; return the offset of the latest row."""
    end = source.end()

    def passed() -> bool:
        status = status_of(stack, daemon)
        return is_whole(status) and source.has_reached(status["position"], end)

    wait(passed, f"{daemon} to come to {end}")
    return int(status_of(stack, daemon)["next_offset"]) - 1


def status_of(stack: Stack, daemon: str) -> Mapping[str, Any]:
    token = (stack.volume("secrets") / "http-token").read_text()
    asked = urllib.request.Request(f"http://{stack.place(daemon, 8079)}/status")
    asked.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310  our own stack
        return dict(json.load(answer))


def is_whole(status: Mapping[str, Any]) -> bool:
    """Whether every table has been read."""
    tables = status.get("tables", {})
    return len(tables) == len(flights.TABLES) and all(table["state"] == "done" for table in tables.values())


def merged(spark: Any, warehouse: Path, newest: int) -> None:
    """Wait until a cut is published that has all up to an offset."""
    seen: list[Path] = []

    def passed() -> bool:
        commits = sorted((warehouse / "_cdcflow_cuts" / "_delta_log").glob("*.json"))
        if commits == seen:  # asking Spark costs the merge processor time
            return False
        seen[:] = commits
        cut = CutsTable(spark, "delta", warehouse).newest()
        return cut is not None and cut.offset >= newest

    wait(passed, f"{warehouse.name}'s merge to come to offset {newest}")


def wait(until: Callable[[], bool], what: str, look_s: float = 0.2) -> None:
    wait_until(until, what, patience_s=PATIENCE_S, pause_max_s=look_s)


def rows_of(postgres: Postgres) -> Rows:
    """All rows of the database by key."""
    found: dict[str, dict[tuple[Any, ...], Mapping[str, Any]]] = {}
    with postgres.server.connect(flights.DATABASE) as connection:
        for table in flights.TABLES:
            names = [name for name, _ in proof.columns_of(connection, table)]
            # A single float as its exact value, not as the shortest text that parses to it.
            listed = ", ".join("visib::float8" if name == "visib" else name for name in names)
            key = [
                name
                for (name,) in connection.execute(
                    "SELECT a.attname FROM pg_index i, unnest(i.indkey) k (number)"
                    " JOIN pg_attribute a ON a.attnum = k.number"
                    " WHERE i.indisprimary AND i.indrelid = %s::regclass AND a.attrelid = i.indrelid ORDER BY a.attnum",
                    (table,),
                )
            ]
            rows = [
                dict(zip(names, row, strict=True))
                for row in connection.execute(f"SELECT {listed} FROM {table}".encode())
            ]
            found[table] = {tuple(row[name] for name in key): plain(row) for row in rows}
    return found


def whole(row: FoldedRow) -> Mapping[str, Any]:
    """A row of the log; an incomplete row equals none of the database."""
    return {**plain(row.values), **({"missing": row.missing} if row.missing else {})}


def plain(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row that can be compared: NaN is not even itself."""
    return {k: "NaN" if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()}


def command_lines() -> list[str]:
    """Of every process of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has ended
    return found

"""What docs/performance.md shows of the results: for each area the few figures by which a reader can choose.

An area has one table and one plot of the same figures. A row is one measured case; a column is cdcflow, or the limit or
peer that ran in the same rounds. All other lines are in `bench/results`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.results import Line, figure


@dataclass(frozen=True, slots=True)
class Case:
    """A row of an area: how a reader would call it, and where its lines are. A column's variant is where `case` has
    `{}`, otherwise at its end."""

    label: str
    bench: str
    case: str

    def named(self, variant: str) -> str:
        """The case's name in the results, in a column's variant."""
        return self.case.format(variant) if "{}" in self.case else self.case + variant


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an area: a peer's figure (`peer`), or cdcflow's in a variant of the case (`variant`)."""

    title: str
    peer: str | None = None
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Area:
    """One table and one plot of the page. `name` is the marker's and the plot's."""

    name: str
    title: str
    unit: str
    cases: tuple[Case, ...]
    columns: tuple[Column, ...]
    is_logarithmic: bool = False

    @property
    def note(self) -> str:
        """How to read the plot."""
        better = "higher" if self.unit.endswith(("rows/s", "changes/s")) else "lower"
        return f"{better} is better; {'logarithmic' if self.is_logarithmic else 'linear'} scale"


def _with(*peers: str | tuple[str, str]) -> tuple[Column, ...]:
    """cdcflow and the peers, each by its name in the results, or by (title, that name)."""
    named = [(peer, peer) if isinstance(peer, str) else peer for peer in peers]
    return (Column("cdcflow"), *(Column(title, peer=name) for title, name in named))


_FORMATS = (("Delta", "delta"), ("Iceberg", "iceberg"))
_FRESH = "5 tables of 5 M rows"

AREAS = (
    Area(
        "stream",
        "The stream of PostgreSQL: rows per second",
        "rows/s",
        (
            Case("6 columns, 1 row per transaction", "drain", "narrow, 6 columns, 1 a transaction, 600,000 rows"),
            Case("6 columns, 100 rows", "drain", "narrow, 6 columns, 100 a transaction, 600,000 rows"),
            Case("10 columns, 100 rows", "drain", "ten, 10 columns, 100 a transaction, 600,000 rows"),
            Case("60 columns, 100 rows", "drain", "sixty, 60 columns, 100 a transaction, 150,000 rows"),
            Case("rows of 2 kB, 100 rows", "drain", "wide, 4 columns, 100 a transaction, 150,000 rows"),
        ),
        _with("pg_recvlogical", "Go pglogrepl", "Debezium"),
    ),
    Area(
        "backlog",
        "A backlog of PostgreSQL: rows per second",
        "rows/s",
        (
            Case("6 columns, 1 row per transaction", "catch-up", "narrow, 6 columns, 1 a transaction, 900,000 rows"),
            Case("6 columns, 100 rows", "catch-up", "narrow, 6 columns, 100 a transaction, 900,000 rows"),
            Case("10 columns, 100 rows", "catch-up", "ten, 10 columns, 100 a transaction, 900,000 rows"),
        ),
        _with(("COPY to nowhere", "COPY(peek) to nowhere"), "pg_recvlogical", "Debezium"),
    ),
    Area(
        "existing-rows",
        "Existing rows of PostgreSQL: rows per second",
        "rows/s",
        (
            Case("1 million rows", "backfill", "narrow, 6 columns, 1,000,000 rows"),
            Case("10 million rows", "backfill", "narrow, 6 columns, 10,000,000 rows"),
        ),
        _with(
            ("2 × COPY to nowhere", "2 × COPY BINARY to nowhere"),
            ("connectorx", "connectorx, 2 partitions, Parquet"),
            ("ADBC", "ADBC, Parquet"),
            "Debezium",
        ),
    ),
    Area(
        "executors",
        "A backfill of 8 million rows: CPU seconds of the capture per million rows",
        "capture's CPU s/M rows",
        (
            Case(
                "executors see the log's folder",
                "executors",
                "cdcflow, 2 executors of 1 core: narrow, 6 columns, 8,000,000 rows",
            ),
            Case(
                "executors send their files",
                "executors",
                "the same, without the log's folder: narrow, 6 columns, 8,000,000 rows",
            ),
        ),
        (Column("two executors"), Column("the daemon alone", peer="cdcflow")),
        is_logarithmic=True,
    ),
    Area(
        "latency",
        "From commit to durable in a log on disk: milliseconds at p99",
        "ms p99",
        (
            Case("986 commits per second", "latency", "10% load, 986 commits/s"),
            Case("4,932 commits per second", "latency", "50% load, 4,932 commits/s"),
            Case("7,891 commits per second", "latency", "80% load, 7,891 commits/s"),
        ),
        _with(("bytes appended to a file", "raw drain, one fdatasync a batch"), "Debezium"),
        is_logarithmic=True,
    ),
    Area(
        "memory",
        "Peak memory: MB",
        "peak RSS MB",
        (
            Case("stream, 6 columns", "drain", "narrow, 6 columns, 100 a transaction, 600,000 rows"),
            Case("stream, 60 columns", "drain", "sixty, 60 columns, 100 a transaction, 150,000 rows"),
            Case("10 million existing rows", "backfill", "narrow, 6 columns, 10,000,000 rows"),
            Case("into Kafka", "to-kafka", "narrow, 100 a transaction, 200,000 rows, log topic"),
        ),
        _with("Go pglogrepl", ("connectorx", "connectorx, 2 partitions, Parquet"), "Debezium"),
        is_logarithmic=True,
    ),
    Area(
        "mysql",
        "The binary log of MySQL and MariaDB: rows per second",
        "rows/s",
        (
            Case(
                "MySQL, 1 row per transaction", "mysql.drain", "mysql, narrow, 6 columns, 1 a transaction, 400,000 rows"
            ),
            Case("MySQL, 100 rows", "mysql.drain", "mysql, narrow, 6 columns, 100 a transaction, 2,000,000 rows"),
            Case("MariaDB, 100 rows", "mysql.drain", "mariadb, narrow, 6 columns, 100 a transaction, 2,000,000 rows"),
        ),
        _with("binlog --raw", "go-mysql", "mysql-event-stream", "Debezium"),
        is_logarithmic=True,
    ),
    Area(
        "kafka",
        "A change of PostgreSQL in Kafka: milliseconds at p50",
        "ms p50",
        (
            Case("the log's topic, 100 commits per second", "kafka-latency", "100 single-row commits/s, log topic"),
            Case("a table's topic, 100", "kafka-latency", "100 single-row commits/s, published topic"),
            Case("the log's topic, 1,000", "kafka-latency", "1,000 single-row commits/s, log topic"),
            Case("a table's topic, 1,000", "kafka-latency", "1,000 single-row commits/s, published topic"),
        ),
        _with(("producer without a database", "transactional producer alone"), "Debezium"),
        is_logarithmic=True,
    ),
    Area(
        "merge",
        "Changes merged into a Delta table of ten million rows: rows per second",
        "rows/s",
        (
            Case("0.1 % changed, recent keys", "merge", "delta: 10,000,000 rows, 0.10% changed, recent keys"),
            Case("0.1 % changed, random keys", "merge", "delta: 10,000,000 rows, 0.10% changed, random keys"),
            Case("1 % changed, random keys", "merge", "delta: 10,000,000 rows, 1.00% changed, random keys"),
        ),
        (
            Column("without Spark", variant=", merge.engine: auto (local)"),
            Column("by Spark"),
            Column("MERGE without bounds by Spark", peer="a naive job"),
        ),
        is_logarithmic=True,
    ),
    Area(
        "freshness",
        "From a commit until a plain reader sees it, at 10,000 changes per second: seconds at p99",
        "s p99",
        tuple(
            Case(f"{title} in a {place}", "fresh", f"{name} in a {place}, {_FRESH}, 10,000 changes/s, 30 min")
            for title, name in _FORMATS
            for place in ("folder", "store")
        ),
        _with("the aim"),
    ),
    Area(
        "freshness-rate",
        "The highest rate of changes that plain readers see within three seconds at p99",
        "changes/s",
        tuple(
            Case(f"{title} in a folder", "fresh-rate", f"{name} in a folder, {_FRESH}, p99 at most 3 s for 10 min")
            for title, name in _FORMATS
        ),
        _with(("Debezium and MERGE by Spark", "Debezium JSON, a stream's MERGE")),
        is_logarithmic=True,
    ),
    Area(
        "reading",
        "From a commit to the end of the first read_live that shows it: seconds at p99",
        "s p99",
        tuple(
            Case(f"{title} {how}", "tables", f"{name}: freshness, 50 commits/s, sealed every 2 s, log{{}}, {how}")
            for how in ("without Spark", "by Spark")
            for title, name in _FORMATS
        ),
        (Column("log on disk", variant=" on disk"), Column("log in a store", variant=" in S3")),
    ),
    Area(
        "queries",
        "One row of 100 million changes in the log: milliseconds",
        "ms",
        (
            Case("p50", "log", "lookup, p50, 100,000,000 changes, 5,000 segments"),
            Case("p99", "log", "lookup, p99, 100,000,000 changes, 5,000 segments"),
        ),
        _with(
            ("a row group at a known place", "one row group, its place known"),
            ("DuckDB without an index", "DuckDB over the same files, no index"),
        ),
        is_logarithmic=True,
    ),
)


def measured(lines: Sequence[Line]) -> list[Area]:
    """The areas with figures in the results. A new area is defined before it is measured."""
    return [area for area in AREAS if figures(area, lines)]


def figures(area: Area, lines: Sequence[Line]) -> dict[tuple[str, str], float]:
    """The area's figures by (label of the case, title of the column), for those that were measured.

    cdcflow's figure is the one of the rounds in which the area's first peer ran: a case may have been run again.
    """
    found: dict[tuple[str, str], float] = {}
    peers = [column.peer for column in area.columns if column.peer]
    for case in area.cases:
        for column in area.columns:
            here = [
                line
                for line in lines
                if (line.bench, line.case, line.unit) == (case.bench, case.named(column.variant), area.unit)
            ]
            if column.peer:
                value = next((line.limit for line in here if line.peer == column.peer), None)
            else:
                here.sort(key=lambda line: peers.index(line.peer) if line.peer in peers else len(peers))
                value = here[0].value if here else None
            if value is not None:
                found[case.label, column.title] = value
    return found


def table(area: Area, lines: Sequence[Line]) -> str:
    """The area's plot and table, as Markdown for docs/performance.md; nothing if it was not measured."""
    values = figures(area, lines)
    if not values:
        return ""
    cases = [case.label for case in area.cases if any(label == case.label for label, _ in values)]
    titles = [c.title for c in area.columns if any(title == c.title for _, title in values)]
    rows = [f"| {area.unit} | {' | '.join(titles)} |", f"| --- |{' ---: |' * len(titles)}"]
    for case in cases:
        cells = [figure(values[case, title]) if (case, title) in values else "" for title in titles]
        rows.append(f"| {case} | {' | '.join(cells)} |")
    return f"![{area.title}; {area.note}](plots/{area.name}.svg)\n\n" + "\n".join(rows) + "\n"

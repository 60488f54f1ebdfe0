"""Warehouses in a bucket, as reached directly and through a proxy, for merges without Spark."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.objects import ObjectServer
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table
from tests.support.objects.store_proxy import StoreProxy

from cdcflow import local
from cdcflow.log.fold.fold import fold
from cdcflow.model.table import Table, TableId
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.job import job
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.maintenance import UpkeepPolicy, UpkeepReport, upkeep
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.paths import Warehouse, table_path

Counted = dict[tuple[Any, ...], int]


@dataclass
class StoredLake:
    """A warehouse in a bucket, and the same one as reached through the proxy."""

    server: ObjectServer
    bucket: str
    proxy: StoreProxy

    @property
    def direct(self) -> Warehouse:
        return Warehouse(f"s3a://{self.bucket}/ware", self.server.objects(self.bucket).address(self.bucket))

    @property
    def proxied(self) -> Warehouse:
        objects = self.server.objects(self.bucket, endpoint=self.proxy.endpoint)
        return Warehouse(f"s3a://{self.bucket}/ware", objects.address(self.bucket))

    def folder_of(self, table: TableId) -> MovedFolder:
        return MovedFolder(Bucket(self.server.objects(self.bucket)), "/".join(("ware", *table_path(table))))


@dataclass
class MovedFolder:
    """A folder in a bucket that an operator moves away."""

    bucket: Bucket
    name: str

    def with_name(self, name: str) -> MovedFolder:
        return MovedFolder(self.bucket, f"{self.name.rpartition('/')[0]}/{name}")

    def rename(self, target: MovedFolder) -> None:
        names = list(self.bucket.list_objects(self.name))
        for name in names:
            self.bucket.put(f"{target.name}/{name}", self.bucket.get(f"{self.name}/{name}"))
        self.bucket.delete([f"{self.name}/{name}" for name in names])


@dataclass
class Changing:
    """A log with a table that has a key and one that has none, and what they must contain at each cut."""

    root: Path
    tables: tuple[Table, ...] = (
        make_table("keyed", id="int64", a="int32", doc="string"),
        make_table("bag", key=(), id="int64", a="int32"),
    )
    ends: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = HandLog(self.root, has_transactions=True)
        for table in self.tables:
            self.log.state(table)

    def segment(self) -> int:
        """Keys are inserted, changed and deleted; equal rows of the table without a key are added and removed."""
        keyed, bag = self.tables
        number = self.log.cut + 1
        rows: list[Step] = [(keyed, "c", {"id": number, "a": number, "doc": f"d{number}"})]
        rows += [(keyed, "u", {"id": n, "a": number, "_unchanged": ["doc"]}) for n in range(max(1, number - 3), number)]
        rows += [(keyed, "d", {"id": number - 4})] if number > 4 else []
        rows += [(bag, "c", {"id": number % 3, "a": 0}), (bag, "c", {"id": number % 3, "a": 0})]
        rows += [(bag, "d", {"id": (number - 1) % 3, "a": 0})] if number > 1 else []
        cut = self.log.segment(rows)
        self.ends[cut] = self.log.next_offset - 1
        return cut

    def check(self, place: Warehouse, cut: int | None = None) -> int:
        """Check that a published cut, by default the latest, is the fold; return its number."""
        found = local.published_cut(place, cut)
        shown = local.read_cut(place, found.cut)
        for table in self.tables:
            counted: Counted = {}
            for row in shown[str(table.id)].to_pylist():
                values = tuple(row[c.name] for c in table.columns)
                counted[values] = counted.get(values, 0) + 1
            assert counted == self._folded(table, found.cut), (found.cut, table.id)
        return found.cut

    def _folded(self, table: Table, cut: int) -> Counted:
        changes = self.log.changes(table.id, self.ends[cut])
        counted: Counted = {}
        for row in fold({}, changes, table.key_columns, keyed=bool(table.key)).values():
            values = tuple(row.values.get(c.name) for c in table.columns)
            counted[values] = counted.get(values, 0) + row.count
        return counted


def merge(log: Path, place: Warehouse) -> MergeReport:
    """Merge by a new engine, as a new process does."""
    return local.merge(log, place, table_format="delta")


def merge_by(engine: LocalEngine, log: Path, place: Warehouse) -> MergeReport:
    """Merge by an engine that has merged before."""
    return job.merge(Engines(engine), log, place)


def look_after(place: Warehouse, kept: int, now: float, table_format: str = "delta") -> UpkeepReport:
    """Maintenance that keeps the last `kept` cuts."""
    with closing(LocalEngine(place, table_format)) as engine:
        oldest = engine.cuts().list_cuts()[-kept]
        return upkeep(Engines(engine), UpkeepPolicy(keep_s=now - oldest.published / 1e6), lambda: now)

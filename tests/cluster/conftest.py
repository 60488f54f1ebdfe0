"""Warehouses in a store that several machines merge into."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.servers.objects import ObjectServer
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table
from tests.support.objects.logs import put_away
from tests.support.tables.catalogs import catalog_of, hadoop_of

from cdcflow.config import Objects
from cdcflow.log.fold.fold import fold
from cdcflow.model.table import Table
from cdcflow.spark import read_cut
from cdcflow.spark.cuts import CutsTable
from cdcflow.spark.runtime.stores import reach
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.cut import Cut
from cdcflow.tables.paths import Warehouse

LOOKED_AT = 4
Counted = dict[tuple[Any, ...], int]


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with ObjectServer() as started:
        yield started


@dataclass
class Lake:
    """A log and a warehouse in a store, and the expected tables at each cut."""

    log: HandLog
    objects: Objects
    place: Warehouse
    format: str
    bucket: Path
    """Where the store's server keeps its buckets."""
    tables: dict[str, Table] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = {
            "keyed": make_table("keyed", id="int64", a="int32", doc="string"),
            "bag": make_table("bag", key=(), id="int64", a="int32"),
            "few": make_table("few", id="int64", a="int32"),
        }
        for table in self.tables.values():
            self.log.state(table)

    def segment(self, number: int) -> None:
        """Seal some changes, and upload them: keys are inserted, changed and deleted; equal rows of a table without a
        key; and a table in which a key is inserted and deleted again, so that of two ranges only one leaves
        something."""
        keyed, bag, few = self.tables.values()
        rows: list[Step] = [(keyed, "c", {"id": number, "a": number, "doc": f"d{number}"})]
        rows += [(keyed, "u", {"id": n, "a": number, "_unchanged": ["doc"]}) for n in range(max(1, number - 3), number)]
        rows += [(keyed, "d", {"id": number - 4})] if number > 4 else []
        rows += [(bag, "c", {"id": number % 3, "a": 0}), (bag, "c", {"id": number % 3, "a": 0})]
        rows += [(bag, "d", {"id": (number - 1) % 3, "a": 0})] if number > 1 else []
        rows += [(few, "c" if number % 2 else "d", {"id": 1, "a": number})]
        cut = self.log.segment(rows)
        self.ends[cut] = self.log.next_offset - 1
        put_away(self.log.root, Bucket(self.objects))

    def check(self, spark: Any, chance: random.Random) -> list[int]:
        """Check that published cuts, the latest and some random ones, equal the fold; return all published."""
        assert self.place.store is not None
        reach(spark, self.place.store)
        cuts = CutsTable(spark, self.format, self.place)
        found = [cut for cut in self.ends if cuts.cut_by_number(cut) is not None]
        newest = cuts.newest()
        assert newest is not None
        assert newest.cut == max(found) == max(self.ends)
        for cut in {newest.cut, *chance.sample(found, min(LOOKED_AT, len(found)))}:
            shown = read_cut(spark, self.place, cut)
            for name, table in self.tables.items():
                key = [c.name for c in table.columns]
                if str(table.id) not in shown:  # it had no rows yet
                    assert not self._folded(table, cut), (cut, name)
                    continue
                actual: Counted = {}
                for row in shown[str(table.id)].collect():
                    values = tuple(row[c] for c in key)
                    actual[values] = actual.get(values, 0) + 1
                assert actual == self._folded(table, cut), (
                    f"cut {cut}, {name}: {self._told(cuts.cut_by_number(cut), name)}"
                )
        return found

    def _told(self, cut: Cut | None, name: str) -> str:
        """What a cut records about a table, and what the table's log and checksums record about each version."""
        lines = [str(cut and cut.tables.get(f"public.{name}"))]
        for path in sorted(
            (self.bucket / self.place.location_of(("public", name, "_delta_log")).removeprefix("s3a://")).iterdir()
        ):
            if path.suffix not in (".json", ".crc"):
                continue
            said = [json.loads(line) for line in path.read_text().splitlines()]
            found = [action.get("txn") or action.get("setTransactions") for action in said]
            of = [action["commitInfo"].get("userMetadata") for action in said if "commitInfo" in action]
            lines.append(f"{path.name} {[one for one in found if one]} {of}")
        return "\n".join(lines)

    def _folded(self, table: Table, cut: int) -> Counted:
        changes = self.log.changes(table.id, self.ends[cut])
        rows = fold({}, changes, table.key_columns, keyed=bool(table.key))
        counted: Counted = {}
        for row in rows.values():
            values = tuple(row.values.get(c.name) for c in table.columns)
            counted[values] = counted.get(values, 0) + row.count
        return counted


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, server: ObjectServer, tmp_path: Path) -> Lake:
    """Of each format. Iceberg's catalog is one that both drivers reach."""
    (tmp_path / "driver").mkdir()
    catalog = {"type": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/driver/catalog.db?busy_timeout=60000", "clients": "1"}
    catalog["jdbc.schema-version"] = "V1"
    return lake_at(server, tmp_path, request.param, catalog)


@pytest.fixture(params=["delta", "iceberg"])
def open_lake(request: pytest.FixtureRequest, server: ObjectServer, tmp_path: Path) -> Iterator[Lake]:
    """Of each format, for both engines: Iceberg's catalog is a server."""
    root = f"s3a://lake-{server.port}/{tmp_path.name}"
    with ExitStack() as stack:
        catalog: dict[str, str] = {}
        if request.param == "iceberg":
            server.objects(f"lake-{server.port}")  # makes the bucket
            catalog = stack.enter_context(catalog_of("rest", root, None, hadoop_of(server)))
            # By default Spark reads `s3a://` of a REST catalog by Iceberg's own client, which needs its AWS bundle.
            catalog["io-impl"] = "org.apache.iceberg.hadoop.HadoopFileIO"
        yield lake_at(server, tmp_path, request.param, catalog)


def lake_at(server: ObjectServer, tmp_path: Path, table_format: str, catalog: dict[str, str]) -> Lake:
    """A new lake in the bucket of a server."""
    # Hadoop remembers a bucket's server for as long as the JVM runs: each server has a bucket with a different name.
    name = f"lake-{server.port}"
    address = server.objects(name).address(name)
    return Lake(
        HandLog(tmp_path / "made" / "log"),
        server.objects("logs", tmp_path.name),
        Warehouse(f"s3a://{name}/{tmp_path.name}", address, catalog if table_format == "iceberg" else None),
        table_format,
        server.directory / "buckets",
    )

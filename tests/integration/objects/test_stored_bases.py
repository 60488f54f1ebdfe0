"""Rows in a bucket as the base of a table: a Delta table, or Parquet files."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.servers.objects import ObjectServer

from cdcflow.errors import ConfigurationError
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.folders import WarehouseFolder
from cdcflow.tables.local.bases import fit_base, open_base
from cdcflow.tables.local.delta import DeltaTables
from cdcflow.tables.local.warehouse_folder import open_folder
from cdcflow.tables.merge.target import Target, TargetColumn
from cdcflow.tables.paths import Warehouse

TARGET = Target(1, ("id",), (TargetColumn("id", 1, "int"), TargetColumn("v", 2, "string")))
ROWS = pa.table({"id": pa.array(range(6), pa.int32()), "v": [f"v{n}" for n in range(6)]})

_buckets = count(1)


@pytest.fixture
def place(object_server: ObjectServer) -> Warehouse:
    bucket = f"bases-{next(_buckets)}"
    return Warehouse(f"s3a://{bucket}/ware", object_server.objects(bucket).address(bucket))


@pytest.fixture
def reach(place: Warehouse) -> Callable[[str], WarehouseFolder]:
    return lambda url: open_folder(Warehouse(Warehouse.of(url).root, place.store))


def rows_of(url: str, as_of: str | None, reach: Callable[[str], WarehouseFolder]) -> list[int]:
    found = fit_base(open_base(url, as_of, reach), TARGET, "attaching t")
    return [n for part in found.parts(["id"], "attaching t") for n in part.column("id").to_pylist()]


def test_delta_table_in_a_bucket_is_read_at_a_version_or_time(
    place: Warehouse, reach: Callable[[str], WarehouseFolder]
) -> None:
    with_rows = DeltaTables(place, None).table(("shop", "items"))
    with_rows.create(ROWS.schema, {"delta.enableDeletionVectors": "true"}, {})
    for first in (0, 3):
        with_rows.append(ROWS.slice(first, 3), {}, "", 0, 1)
    url = str(place.root).replace("s3a", "s3") + "/shop/items"
    assert rows_of(url, None, reach) == [0, 1, 2, 3, 4, 5]
    assert rows_of(url, "1", reach) == [0, 1, 2]
    then = datetime.fromtimestamp(with_rows._log.actions(1)[0]["commitInfo"]["timestamp"] / 1000).astimezone()  # type: ignore[index]
    assert rows_of(url, then.isoformat(), reach)[:3] == [0, 1, 2]
    for wrong in ("7", (then - timedelta(days=1)).isoformat()):
        with pytest.raises(ConfigurationError, match="has no version"):
            rows_of(url, wrong, reach)


def test_parquet_files_in_a_bucket_are_read(
    place: Warehouse, object_server: ObjectServer, reach: Callable[[str], WarehouseFolder]
) -> None:
    bucket = Bucket(object_server.objects(str(place.bucket)))
    for number in range(2):
        file = io.BytesIO()
        pq.write_table(ROWS.slice(number * 3, 3), file)
        bucket.upload(f"loaded/items/part-{number}.parquet", file.getvalue())
    bucket.put("loaded/items/_SUCCESS", b"")
    bucket.put("loaded/other/a.txt", b"no Parquet")
    above = f"s3://{place.bucket}/loaded"
    assert rows_of(f"{above}/items", None, reach) == [0, 1, 2, 3, 4, 5]
    assert rows_of(f"{above}/items/part-1.parquet", None, reach) == [3, 4, 5]
    for wrong, why in (("other", "not Parquet"), ("nothing", "no Parquet file")):
        with pytest.raises(ConfigurationError, match=why):
            rows_of(f"{above}/{wrong}", None, reach)

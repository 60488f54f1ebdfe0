"""Manifests that are read and written with known readers and writers are those of PyIceberg."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, write_manifest, write_manifest_list
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, TimestamptzType

from cdcflow.model import file_layout
from cdcflow.tables.local import iceberg_avro
from cdcflow.tables.local.iceberg import IcebergTables
from cdcflow.tables.local.scan import RowMarks

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int32())])


def words(found: Any) -> Any:
    """A record of PyIceberg in Python's own words: two manifests of one name are equal, whatever is in them."""
    if isinstance(found, Record):
        return type(found).__name__, [words(one) for one in found._data]
    return [words(one) for one in found] if isinstance(found, list | tuple) else found


@pytest.mark.parametrize("partition", ["", "bucket(2, id)"])
def test_what_is_read_equals_what_pyiceberg_reads(tmp_path: Path, partition: str) -> None:
    """Each of several commits with data files and delete files, in one or several partitions, and of another shape."""
    with closing(IcebergTables(tmp_path, None)) as tables:
        table = tables.table(("shop", "orders"))
        table.create(COLUMNS, {}, {})
        table.snapshot()
        if partition:
            by = file_layout.PartitionField.parse(partition)
            table.lay_out(file_layout.FileLayout((by,)), {}, {})
        for cut in range(1, 5):
            table.snapshot()
            files = table.files()
            marked = [(file, RowMarks(np.array([cut]))) for file in files[: cut - 1]]
            rows = pa.table([range(10), range(10)], schema=COLUMNS)
            table.replace(files[3:4], rows, {"cut": cut}, "", 0, marked)
        table.snapshot()
        table.add(pa.schema([("note", pa.string())]), {})
        table.snapshot()
        table.replace(table.files()[:1], None, {"cut": 5}, "", 0)
        there = table._table
        read = []
        for snapshot in there.snapshots():
            listed = snapshot.manifests(there.io)
            assert words(iceberg_avro.read_list(snapshot.manifest_list, there.io)) == words(listed)
            for manifest in listed:
                entries = manifest.fetch_manifest_entry(there.io, discard_deleted=True)
                assert words(iceberg_avro.read_living(manifest, there.io)) == words(entries)
                assert [e.data_file.spec_id for e in entries] == [manifest.partition_spec_id] * len(entries)
                read += entries
        assert {entry.data_file.content for entry in read} == {DataFileContent.DATA, DataFileContent.POSITION_DELETES}


SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False), NestedField(2, "at", TimestamptzType(), required=False)
)
DAY = PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="at_day")
BUCKET = PartitionField(source_id=1, field_id=1001, transform=BucketTransform(4), name="id_bucket")


@pytest.mark.parametrize("fields", [(), (DAY,), (BUCKET, DAY), (DAY, BUCKET)])
def test_what_is_written_equals_what_pyiceberg_writes(tmp_path: Path, fields: tuple[PartitionField, ...]) -> None:
    """Other readers get the same schema, the same properties and the same entries."""
    spec, io = PartitionSpec(*fields, spec_id=len(fields)), PyArrowFileIO()
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="orders.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*(7 + n for n, _ in enumerate(fields))),
        record_count=3,
        file_size_in_bytes=100,
        lower_bounds={1: b"\1\0\0\0\0\0\0\0"},
    )
    found = []
    for number, kind in enumerate((None, iceberg_avro.ManifestWriter, iceberg_avro.ManifestWriter)):
        output = io.new_output(str(tmp_path / f"{number}.avro"))
        given: Any = (spec, SCHEMA, output, 5, "gzip")
        writer = write_manifest(2, *given) if kind is None else kind(*given)
        with writer:
            writer.add(ManifestEntry.from_args(snapshot_id=5, data_file=file))
        manifest = writer.to_manifest_file()
        with AvroFile[Any](io.new_input(output.location)) as opened:
            meta = dict(opened.header.meta)
        manifest.sequence_number = 9
        entries = words(iceberg_avro.read_living(manifest, io))
        found.append((meta, entries, words(manifest)[1][2:]))
    assert found[1] == found[2] == found[0]


def test_list_that_is_written_equals_what_pyiceberg_writes(tmp_path: Path) -> None:
    """The header, except its random marker, and the manifests, which get the sequence number of the commit."""
    io = PyArrowFileIO()
    with closing(IcebergTables(tmp_path, None)) as tables:
        table = tables.table(("shop", "orders"))
        table.create(COLUMNS, {}, {})
        table.snapshot()
        table.replace([], pa.table([range(10), range(10)], schema=COLUMNS), {"cut": 1}, "", 0)
        table.snapshot()
        table.replace([], None, {"cut": 2}, "", 0, [(table.files()[0], RowMarks(np.array([3])))])
        newest = table._table.current_snapshot()
        assert newest is not None
        assert newest.parent_snapshot_id is not None
        manifests = newest.manifests(io)
        places = [str(tmp_path / name) for name in ("ours.avro", "theirs.avro")]
        ids = newest.snapshot_id, newest.parent_snapshot_id, 7
        with iceberg_avro.ManifestListWriter(io.new_output(places[0]), *ids, "deflate") as ours:
            ours.add_manifests(manifests)
        with write_manifest_list(2, io.new_output(places[1]), *ids, avro_compression="deflate") as theirs:
            theirs.add_manifests(manifests)
    found = []
    for place in places:
        with AvroFile[Any](io.new_input(place)) as opened:
            found.append((opened.header.meta, [words(one) for one in opened]))
    assert found[0] == found[1]
    assert len(found[0][1]) == len(manifests) == 2

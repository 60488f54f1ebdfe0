"""Deletion vectors: the bytes written follow Delta's protocol, and other readers find the same rows deleted."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as ForeignTable
from deltalake import QueryBuilder
from pyroaring import BitMap, BitMap64

from cdcflow.tables.folders import WarehouseFolder
from cdcflow.tables.formats.delta import CHECKPOINT_EVERY, from_z85, to_z85, vector_path
from cdcflow.tables.local import vectors
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.local.deltalog import DeltaLog, File
from cdcflow.tables.local.scan import Numbers, RowMarks
from cdcflow.tables.port import HandOver

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])

SETS: list[Any] = [
    [],
    [0],
    [3, 4, 7, 11, 18, 29],
    range(100_000),
    range(0, 1_000_000, 7),
    [65_535, 65_536, 2**32 - 1],
    [1, 2**32, 2**32 + 5, 3 * 2**32],
]


def numbers(listed: Any) -> Numbers:
    return np.array(listed, np.int64)


def made(folder: Path, count: int, files: int = 1) -> DeltaTable:
    """A table with this many rows, in this many files of equal size."""
    table = DeltaTable(folder, None)
    table.create(COLUMNS, {"cdcflow.begun": "0"}, {"cut": 1})
    for ids in np.split(np.arange(count), files):
        table.append(pa.table([ids, [f"n{n}" for n in ids]], schema=COLUMNS), {"cut": 2}, "", 0, 1)
    return table


def mark(table: DeltaTable, *gone: tuple[File, Any]) -> None:
    table.replace(
        [],
        None,
        {"cut": 3},
        "",
        0,
        [(file, RowMarks.of(table.deleted_rows(file), numbers(listed))) for file, listed in gone],
    )


def ids(table: DeltaTable) -> list[int]:
    return sorted(table.rows().column("id").to_pylist())


def others_ids(folder: Path) -> list[int]:
    """What delta-rs finds, which reads vectors by Delta's own kernel."""
    found = QueryBuilder().register("t", ForeignTable(folder)).execute("SELECT id FROM t ORDER BY id").read_all()
    listed: list[int] = pa.table(found).column("id").to_pylist()
    return listed


def write(folder: Path, *gone: Numbers) -> list[Mapping[str, Any]]:
    """Vectors of files without marks so far."""
    return vectors.KnownVectors().write(WarehouseFolder.of(folder), [(None, RowMarks(listed)) for listed in gone])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Vectors of one commit are in one file, one after the other."""
    said = write(tmp_path, *(numbers(listed) for listed in SETS))
    assert len(list(tmp_path.iterdir())) == 1
    for listed, vector in zip(SETS, said, strict=True):
        assert vectors.deleted_numbers(tmp_path, vector).tolist() == list(listed)
        assert vector["cardinality"] == len(listed)
    assert vectors.deleted_numbers(tmp_path, None).tolist() == []


def test_bytes_are_those_of_the_protocol(tmp_path: Path) -> None:
    """Version, sizes and checksums around a magic number and, per 2^32 rows, its number and a bitmap of 32 bits."""
    first, second = write(tmp_path, numbers([1, 5]), numbers([7, 2**32 + 9]))
    (path,) = tmp_path.iterdir()
    assert path.name == vector_path(first["pathOrInlineDv"])
    assert (first["storageType"], first["offset"], len(first["pathOrInlineDv"])) == ("u", 1, 20)
    held = path.read_bytes()
    assert held[0] == 1
    begin = second["offset"]
    assert begin == 1 + 4 + first["sizeInBytes"] + 4
    assert held[begin : begin + 4] == struct.pack(">I", second["sizeInBytes"])
    content = held[begin + 4 : begin + 4 + second["sizeInBytes"]]
    assert held[begin + 4 + second["sizeInBytes"] :] == struct.pack(">I", zlib.crc32(content))
    assert struct.unpack("<IQ", content[:12]) == (1681511377, 2)
    at = 12
    for high, low in ((0, 7), (1, 9)):
        bitmap = BitMap([low]).serialize()
        assert content[at:][: 4 + len(bitmap)] == struct.pack("<I", high) + bitmap
        at += 4 + len(bitmap)
    assert at == len(content)


@pytest.mark.parametrize(("count", "top"), [(0, 1), (1, 1), (1000, 2**32), (70_000, 80_000), (70_000, 10**7)])
def test_vector_is_the_one_that_a_roaring_library_writes(tmp_path: Path, count: int, top: int) -> None:
    gone = np.unique(np.random.default_rng(count).integers(0, top, count)).astype(np.int64)
    (vector,) = write(tmp_path, gone)
    content = (tmp_path / vector_path(vector["pathOrInlineDv"])).read_bytes()[5:][: vector["sizeInBytes"]]
    expected = BitMap64(gone.tolist())
    expected.run_optimize()
    assert content[4:] == expected.serialize()


@pytest.mark.parametrize("top", [300_000, 2**31, 2**34])
def test_vector_that_grows_is_the_one_that_a_roaring_library_writes(tmp_path: Path, top: int) -> None:
    """Each merge adds a few rows to the vector of this process, or to one that another process wrote."""
    random = np.random.default_rng(top)
    here, known = WarehouseFolder.of(tmp_path), vectors.KnownVectors()
    gone, vector = np.unique(random.integers(0, top, 5000)), None
    for step in range(12):
        if step % 4 == 3:
            known = vectors.KnownVectors()
        marks = RowMarks.of(gone, random.permutation(np.concatenate([gone[:5], random.integers(0, top, 9000)])))
        (vector,) = known.write(here, [(vector, marks)])
        gone = marks.all
        expected = BitMap64(gone.tolist())
        expected.run_optimize()
        content = (tmp_path / vector_path(vector["pathOrInlineDv"])).read_bytes()[5:][: vector["sizeInBytes"]]
        assert content[4:] == expected.serialize()
        assert vector["cardinality"] == len(gone) == len(set(gone.tolist()))
        assert known.deleted_numbers(here, vector).tolist() == gone.tolist() == sorted(gone.tolist())


def test_names_are_those_of_the_protocol() -> None:
    """Its own example, both ways."""
    stored, id_ = "ab^-aqEH.-t@S}K{vb[*k^", UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
    assert vector_path(stored) == f"ab/deletion_vector_{id_}.bin"
    assert to_z85(id_.bytes) == stored[2:]
    assert from_z85(stored[2:]) == id_.bytes


def test_vectors_in_the_log_itself_are_read_and_other_forms_delegated(tmp_path: Path) -> None:
    """The protocol's example has a form that Delta has abandoned; other writers pad theirs to what Z85 can hold."""
    content = struct.pack("<I", 1681511377) + BitMap64([2, 40, 41]).serialize()
    inline = {"storageType": "i", "pathOrInlineDv": to_z85(content + b"\0" * (-len(content) % 4))}
    assert vectors.deleted_numbers(tmp_path, {**inline, "sizeInBytes": len(content)}).tolist() == [2, 40, 41]
    assert len(content) % 4
    example = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    with pytest.raises(HandOver, match="of a form that only Spark reads"):
        vectors.deleted_numbers(tmp_path, {"storageType": "i", "pathOrInlineDv": example, "sizeInBytes": 40})


def test_others_find_the_same_rows_gone(tmp_path: Path) -> None:
    """delta-rs, of one file and of two, after a second vector of the same file, and from its own checkpoint."""
    folder = tmp_path / "t"
    table = made(folder, 400_000, files=2)
    first, second = table.files()
    mark(table, (first, range(0, 200_000, 3)), (second, [0, 199_999]))
    left = {*range(400_000)} - {*range(0, 200_000, 3)} - {200_000, 399_999}
    assert ids(table) == others_ids(folder) == sorted(left)
    marked = next(file for file in table.files() if file.path == first.path)
    assert marked.vector is not None
    mark(table, (marked, sorted({*range(0, 200_000, 3), 1, 131_071, 131_072})))
    left -= {1, 131_071, 131_072}
    assert ids(table) == others_ids(folder) == sorted(left)
    assert sorted((f.path, f.vector is not None) for f in table.files()) == sorted(
        (f, True) for f in (first.path, second.path)
    )
    ForeignTable(folder).create_checkpoint()
    late = DeltaTable(folder, None)
    assert late.snapshot() is not None
    assert not late._log.is_short
    assert ids(late) == others_ids(folder) == sorted(left)
    assert sorted(map(str, late.files())) == sorted(map(str, table.files()))


def test_marked_file_is_removed_with_its_latest_vector(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    table = made(folder, 100)
    for gone in (range(10), range(20)):
        mark(table, (table.files()[0], gone))
    table.replace(table.files(), pa.table([[7], ["x"]], schema=COLUMNS), {"cut": 4}, "", 0)
    late = DeltaTable(folder, None)
    assert late.snapshot() is not None
    assert ids(late) == others_ids(folder) == [7]


def test_checkpoints_know_the_vectors_of_all_versions_before(tmp_path: Path) -> None:
    """A file has a different vector in each version; only the latest counts."""
    folder = tmp_path / "t"
    table = made(folder, 4 * CHECKPOINT_EVERY, files=2)
    for number in range(1, 2 * CHECKPOINT_EVERY):
        file = table.files()[number % 2]
        mark(table, (file, [*vectors.deleted_numbers(folder, file.vector), number]))
    late = DeltaLog(folder)
    late.update()
    assert not late.is_short
    assert sorted(map(str, late.files())) == sorted(map(str, table._log.files()))
    gone = [len(vectors.deleted_numbers(folder, file.vector)) for file in late.files()]
    assert sorted(gone) == [CHECKPOINT_EVERY - 1, CHECKPOINT_EVERY]
    assert len(others_ids(folder)) == 4 * CHECKPOINT_EVERY - sum(gone)


def test_statistics_of_a_marked_file_stay_unchanged(tmp_path: Path) -> None:
    """A bound that was parsed as a number and written again could differ, and other engines would skip rows."""
    least, greatest = "-0.10", "123456789012345678901234567890.12345678"
    bounds = f'"minValues":{{"a":{least}}} ,"maxValues":{{"a":{greatest},"b":"}}"}}'
    told = f'{{ "numRecords":5, "tightBounds" : true,{bounds}}}'
    marked = File("f", 1, told, modified_ms=7).with_deleted_rows(5, {"storageType": "u"})
    assert f'"minValues":{{"a":{least}}}' in marked.told
    assert f'"maxValues":{{"a":{greatest},"b":"}}"}}' in marked.told
    assert (marked.stats["numRecords"], marked.stats["tightBounds"]) == (5, False)
    assert marked.add_action()["add"]["deletionVector"] == {"storageType": "u"}
    assert marked.add_action()["add"]["modificationTime"] == 7
    assert File("f", 1).with_deleted_rows(9, {}).stats == {"numRecords": 9, "tightBounds": False}


def test_row_count_of_a_file_is_written_though_another_writer_omitted_it(tmp_path: Path) -> None:
    """Delta requires it of each file with a vector."""
    folder = tmp_path / "t"
    table = made(folder, 10)
    (file,) = table.files()
    mark(table, (File(file.path, file.size, modified_ms=1), [3]))
    (marked,) = table.files()
    assert marked.stats["numRecords"] == 10 == pq.read_metadata(folder / marked.path).num_rows
    assert len(ids(table)) == 9


def test_columns_of_many_files_are_identified_without_reading_the_schema_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction does it for all files, and a wide table's schema takes a tenth of a millisecond to read."""
    table = made(tmp_path / "t", 40, files=20)
    files, read, right = table.files(), list[str](), json.loads

    def loads(text: str) -> Any:
        read.append(text)
        return right(text)

    assert all(not table.may_have_null(file, "id") for file in files)
    monkeypatch.setattr(json, "loads", loads)
    for name in COLUMNS.names:
        assert not any(table.may_have_null(file, name) for file in files)
        assert len({table.content_of(file, name) for file in files}) == len(files)
    assert len(read) < len(files)
    before = table.column_id("name")
    table.rename("name", "title", {"cut": 4})
    assert table.column_id("title") == before
    assert not any(table.may_have_null(file, "title") for file in table.files())
    table.add(pa.schema([("name", pa.string())]), {"cut": 5})
    assert table.column_id("name") != before
    assert all(table.may_have_null(file, "name") for file in table.files())

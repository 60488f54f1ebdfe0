"""Logs of Delta tables without Spark: what is read from them, what is refused, and who commits a version."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as ForeignTable
from pyroaring import BitMap64

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.tables.formats.delta import CHECKPOINT_EVERY, CHECKPOINTS, RULES
from cdcflow.tables.local import deltalog
from cdcflow.tables.local.delta import DeltaTable, DeltaTables
from cdcflow.tables.local.deltalog import Conflict, DeltaLog, File
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.vectors import deleted_numbers
from cdcflow.tables.port import HandOver

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("parts", pa.map_(pa.string(), pa.struct([("n", pa.int32())]))),
    ]
)


def made(folder: Path, columns: pa.Schema = COLUMNS, **properties: str) -> DeltaTable:
    table = DeltaTable(folder, None)
    table.create(columns, {"cdcflow.begun": "0", **properties}, {"cut": 1})
    return table


def rows(*ids: int) -> pa.Table:
    listed = [{"id": n, "name": f"n{n}", "day": None, "at": None, "parts": [("a", {"n": n})]} for n in ids]
    return pa.Table.from_pylist(listed, COLUMNS)


def actions(folder: Path, version: int) -> list[dict[str, Any]]:
    found = DeltaLog(folder).actions(version)
    assert found is not None
    return [dict(action) for action in found]


def rewrite(folder: Path, version: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the log's contents, as another writer would have written them."""
    told = actions(folder, version)
    for action in told:
        change(action)
    (folder / "_delta_log" / f"{version:020d}.json").write_text("\n".join(map(json.dumps, told)))


def test_what_is_written_is_read_by_others(tmp_path: Path) -> None:
    """delta-rs and pyarrow find every value, under the current names of the columns."""
    table = made(tmp_path / "t")
    table.append(rows(1, 2), {"cut": 2}, "me", 7, 1)
    table.rename("name", "other", {"cut": 3})
    table.add(pa.schema([("late", pa.int16())]), {"cut": 4})
    table.widen("late", pa.int32(), {"cut": 5})
    assert table.snapshot() is not None
    assert table.rows().to_pylist() == [
        {"id": n, "other": f"n{n}", "day": None, "at": None, "parts": [("a", {"n": n})], "late": None} for n in (1, 2)
    ]
    assert table._log.transactions == {"me": 7}
    with pytest.raises(Conflict):
        made(tmp_path / "t")
    found = ForeignTable(tmp_path / "t")
    assert found.transaction_version("me") == 7
    assert [f.name for f in found.schema().fields] == ["id", "other", "day", "at", "parts", "late"]
    assert found.protocol().min_reader_version == 3
    assert set(found.protocol().reader_features or []) >= {"columnMapping", "timestampNtz", "typeWidening"}
    (file,) = table.files()
    (physical,) = (f["metadata"]["delta.columnMapping.physicalName"] for f in table._fields if f["name"] == "id")
    held = pq.read_table(tmp_path / "t" / file.path).column(physical).to_pylist()
    assert held == [1, 2] == [file.stats["minValues"][physical], file.stats["maxValues"][physical]]
    assert file.stats["numRecords"] == 2


def test_version_belongs_to_the_process_that_creates_it_first(tmp_path: Path) -> None:
    made(tmp_path / "t")
    first, second = (DeltaTable(tmp_path / "t", None) for _ in range(2))
    assert first.snapshot() == second.snapshot() == ANY
    first.append(rows(1), {"cut": 2}, "", 0, 1)
    with pytest.raises(Conflict):
        second.append(rows(2), {"cut": 2}, "", 0, 1)
    assert DeltaTables(tmp_path, None).is_conflict(Conflict())
    second.snapshot()
    assert second.rows().column("id").to_pylist() == [1]
    assert not [path for path in (tmp_path / "t" / "_delta_log").iterdir() if path.name[0] == "."]


def test_state_is_the_same_with_and_without_checkpoints(tmp_path: Path) -> None:
    """A checkpoint is written every few versions; a reader that begins there has the files, properties and
    transactions."""
    folder = tmp_path / "t"
    table = made(folder)
    for number in range(1, 2 * CHECKPOINT_EVERY + 4):
        table.append(rows(number), {"cut": number}, f"app{number % 3}", number, 1)
        if number % 4 == 0:  # a file goes, too
            table.replace([table.files()[0]], None, {"cut": number}, "", 0)
    checkpoints = [path.name for path in (folder / "_delta_log").glob("*.checkpoint.parquet")]
    assert len(checkpoints) == 2
    late = DeltaLog(folder)
    assert late.update() == table._log.version
    assert not late.is_short
    assert sorted(map(str, late.files())) == sorted(map(str, table._log.files()))
    assert late.transactions == table._log.transactions
    assert late.metadata["configuration"] == table._log.metadata["configuration"]
    for name in checkpoints:
        (folder / "_delta_log" / name).unlink()
    early = DeltaLog(folder)
    early.update()
    assert sorted(map(str, early.files())) == sorted(map(str, late.files()))


@pytest.mark.parametrize(("said", "every"), [("3", 3), ("0", 10), ("often", 10)])
def test_table_property_sets_the_interval_of_checkpoints(tmp_path: Path, said: str, every: int) -> None:
    """A user may have set it differently; for a value that is not a number Delta's default is used."""
    table = made(tmp_path / "t", **{CHECKPOINTS: said})
    for number in range(1, 12):
        table.append(rows(number), {"cut": number}, "", 0, 1)
    found = {int(path.name[:20]) for path in (tmp_path / "t" / "_delta_log").glob("*.checkpoint.parquet")}
    assert found == set(range(every, 12, every))


def test_versions_are_read_one_by_one_where_no_checkpoint_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr(deltalog, "write_checkpoint", refused)
    table = made(tmp_path / "t")
    for number in range(1, CHECKPOINT_EVERY + 3):
        table.append(rows(number), {"cut": number}, "", 0, 1)
    other = DeltaTable(tmp_path / "t", None)
    assert other.snapshot() is not None
    assert len(other.rows()) == CHECKPOINT_EVERY + 2


def vector_in_file(folder: Path, content: bytes, crc: int | None = None) -> dict[str, Any]:
    """A deletion vector in a file, after another vector."""
    body = struct.pack(">I", len(content)) + content
    body += struct.pack(">I", zlib.crc32(content) if crc is None else crc)
    (folder / "deletion_vector_00000000-0000-0000-0000-000000000000.bin").write_bytes(b"\1" + body)
    stored = "0" * 20
    return {"storageType": "u", "pathOrInlineDv": stored, "offset": 1, "sizeInBytes": len(content), "cardinality": 2}


def test_rows_that_a_vector_deletes_are_not_read_and_it_is_removed_with_its_file(tmp_path: Path) -> None:
    """As Spark writes them. The action that removes the file names the vector, or the file would stay."""
    folder = tmp_path / "t"
    table = made(folder)
    table.append(rows(*range(5)), {"cut": 2}, "", 0, 1)
    content = struct.pack("<I", 1681511377) + BitMap64([1, 3]).serialize()
    vector = vector_in_file(folder, content)
    rewrite(folder, 1, lambda action: action["add"].update(deletionVector=vector) if "add" in action else None)
    ForeignTable(folder).create_checkpoint()
    again = DeltaTable(folder, None)
    again.snapshot()
    assert not again._log.is_short
    assert again.rows().column("id").to_pylist() == [0, 2, 4]
    again.replace(again.files(), rows(9), {"cut": 3}, "", 0)
    (removed,) = (action["remove"] for action in actions(folder, 2) if "remove" in action)
    assert removed["deletionVector"] == vector
    late = DeltaTable(folder, None)
    late.snapshot()
    assert late.rows().column("id").to_pylist() == [9]
    other = ForeignTable(folder)
    assert len(other.file_uris()) == 1
    # What docs/merge.md states about old files: these are removed, and every row stays.
    other.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(list(folder.glob("*.parquet"))) == 1
    assert late.rows().column("id").to_pylist() == [9]

    with pytest.raises(HandOver, match="a wrong checksum"):
        deleted_numbers(folder, vector_in_file(folder, content, crc=1))
    with pytest.raises(HandOver, match="of a form that only Spark reads"):
        deleted_numbers(folder, vector_in_file(folder, b"\0" * 8))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a["protocol"]["writerFeatures"].append("rowTracking"), "only Spark knows: rowTracking"),
        (lambda a: a["protocol"].update(minWriterVersion=6), "older protocol"),
        (lambda a: a["metaData"].update(partitionColumns=["id"]), "partitioned"),
        (lambda a: a["metaData"]["configuration"].update({"delta.appendOnly": "true"}), "properties"),
        (lambda a: a["metaData"]["configuration"].update({"delta.columnMapping.mode": "id"}), "properties"),
        (
            lambda a: a["metaData"].update(
                schemaString=a["metaData"]["schemaString"].replace('"metadata":{', '"metadata":{"delta.invariants":"",')
            ),
            "invariants",
        ),
    ],
)
def test_tables_that_only_spark_can_write_are_delegated_to_it(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: str
) -> None:
    def told(action: dict[str, Any]) -> None:
        with suppress(KeyError):
            change(action)

    folder = tmp_path / "t"
    made(folder)
    rewrite(folder, 0, told)
    table = DeltaTable(folder, None)
    assert table.snapshot() is not None
    with pytest.raises(HandOver, match=reason):
        table.append(rows(1), {"cut": 2}, "", 0, 1)
    with pytest.raises(HandOver, match=reason):
        table.describe({"a": "b"}, {"cut": 2})
    with pytest.raises(HandOver, match=reason):
        table.rows()


def test_log_with_an_unsupported_beginning_is_delegated_to_spark(tmp_path: Path) -> None:
    """Nothing is guessed where versions are missing, or a checkpoint is in several files; the error about cuts names
    the remedy. Only a version that is missing without such a checkpoint is called missing."""
    folder = tmp_path / "_cdcflow_cuts"
    table = made(folder)
    table.append(rows(1), {"cut": 2}, "", 0, 1)
    (folder / "_delta_log" / f"{0:020d}.json").unlink()
    with pytest.raises(HistoryLost, match=r"version 0 of table .* is missing"):
        DeltaLog(folder).update()
    (folder / "_delta_log" / f"{1:020d}.checkpoint.0000000001.0000000002.parquet").touch()
    with pytest.raises(HandOver, match="checkpoint that only Spark reads"):
        DeltaLog(folder).update()
    with pytest.raises(ConfigurationError, match=r"set merge\.engine to spark"):
        LocalEngine(tmp_path, "delta").cuts().newest()
    sidecars = pa.struct([("path", pa.string())])
    held = pa.table({"sidecar": pa.array([{"path": "x"}], sidecars)})
    pq.write_table(held, folder / "_delta_log" / f"{0:020d}.checkpoint.parquet")
    with pytest.raises(HandOver, match="has a checkpoint that only Spark reads"):
        DeltaLog(folder).update()


@pytest.mark.parametrize("path", ["file:///elsewhere/a.parquet", "/elsewhere/a.parquet"])
def test_files_outside_of_the_table_are_delegated_to_spark(tmp_path: Path, path: str) -> None:
    with pytest.raises(HandOver, match="outside of its folder"):
        deltalog.name_of(File(path, 1))


def test_bounds_are_kept_where_their_order_is_that_of_sql(tmp_path: Path) -> None:
    """A text that was truncated does not bound the values that continue it."""
    table = made(tmp_path / "t", pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.date32())]))
    for name in ("short", "x" * 40):
        listed = [{"id": 3, "name": name, "day": 1}, {"id": None, "name": "a", "day": None}]
        table.append(pa.Table.from_pylist(listed, table.schema), {"cut": 1}, "", 0, 1)
    first, second = table.files()
    assert table.bounds([first, second], "id") == [(3, 3), (3, 3)]
    assert table.bounds([first, second], "name") == [("a", "short"), None]
    assert table.bounds([first], "day") == [("1970-01-02", "1970-01-02")]
    name = table._fields[0]["metadata"]["delta.columnMapping.physicalName"]
    assert [f.stats["nullCount"][name] for f in (first, second)] == [1, 1]


def test_table_without_features_is_the_same_after_a_checkpoint(tmp_path: Path) -> None:
    """There its protocol has features that are NULL; a table that was mapped since has all of them."""
    table = DeltaTable(tmp_path / "t", None)
    columns = pa.schema([("id", pa.int64()), ("v", pa.string())])
    table.create(columns, {CHECKPOINTS: "10"}, {"cut": 1}, RULES.making([], wide=True))
    for n in range(10):
        table.append(pa.table({"id": [n], "v": ["x"]}, columns), {"cut": n}, "", 0, 1)
    assert (tmp_path / "t" / "_delta_log" / f"{10:020d}.checkpoint.parquet").exists()
    again = DeltaTable(tmp_path / "t", None)
    assert again.snapshot() is not None
    again.append(pa.table({"id": [10], "v": ["x"]}, columns), {"cut": 11}, "", 0, 1)
    assert ForeignTable(tmp_path / "t").to_pyarrow_table().num_rows == 11
    again.rename("v", "w", {"cut": 12})
    again.append(pa.table({"id": [11], "w": ["y"]}), {"cut": 13}, "", 0, 1)
    assert again._log.protocol["readerFeatures"] == ["columnMapping"]
    assert sorted(again.rows().column("w").to_pylist()) == ["x"] * 11 + ["y"]

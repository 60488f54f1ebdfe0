"""Checkpoints of a Delta table: the whole state at a version, in one file.

delta-rs reads each commit since the previous checkpoint four times, in a store with a request each (212 for 50 commits,
measured with 1.6.6). This module writes them from the state in memory, with five requests. Source:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md#checkpoints

A checkpoint also lists the files that the table has removed, for as long as it keeps them. Checkpoints of other writers
may lack the deletion vectors of these files. So a checkpoint by cdcflow states since when it has all of them
(`Removals`).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdcflow.tables.folders import WarehouseFolder
from cdcflow.tables.formats.delta import log_kept_s, removed_kept_s

LAST = "_last_checkpoint"
"""The file that records the version of the last checkpoint."""

_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("deletionVector", _VECTOR),
    ]
)
_REMOVE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("deletionVector", _VECTOR),
    ]
)
_SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        ("add", _ADD),
        ("remove", _REMOVE),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", _TEXTS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)
_OF_VERSION = re.compile(r"(\d{20})\.")
_REMOVALS = b"cdcflow.removals"

DATED_BEFORE_S = 86_400.0
"""How long before its commit the removal of a file may be dated: some programs date it when they begin to rewrite the
file."""

Action = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Removals:
    """The removed files that a checkpoint lists completely, each with its deletion vector: those that commits after
    `version` (-1: all) removed later than `ms`, in milliseconds since 1970."""

    version: int = -1
    ms: int = 0

    @classmethod
    def of(cls, checkpoint: pq.ParquetFile) -> Removals | None:
        """Return the removals that a checkpoint states to be complete; `None` if another program has written it."""
        said = (checkpoint.schema_arrow.metadata or {}).get(_REMOVALS)
        return None if said is None else cls(**json.loads(said))

    def has_since(self, version: int, next_ms: float) -> bool:
        """Return whether the checkpoint lists all files that were removed after a version. `next_ms`: the time of the
        commit that follows that version."""
        return self.version <= version and next_ms - DATED_BEFORE_S * 1000 >= self.ms


def may_be_since(committed_ms: float, remove: Action) -> bool:
    """Return whether a commit at this time, or a later one, may have removed the file of this action."""
    return int(remove.get("deletionTimestamp") or committed_ms) >= committed_ms - DATED_BEFORE_S * 1000


def name_of_checkpoint(version: int) -> str:
    """Return the name of a checkpoint in one file."""
    return f"{version:020d}.checkpoint.parquet"


def write_checkpoint(
    log: WarehouseFolder,
    version: int,
    state: Sequence[Action],
    removed: Sequence[Action],
    removed_before: pa.Array | None,
    known: Removals,
    now_ms: int,
) -> None:
    """Write the checkpoint of a version. `state`: its protocol, description, transactions and files. `removed`: the
    `remove` actions since the previous checkpoint; `removed_before`: the actions in that one, complete as `known`
    states. Actions that are older than the table keeps removed files are dropped, because their files need not exist
    any longer."""
    metadata = next(action["metaData"] for action in state if "metaData" in action)
    removals = pa.array([{**action, "dataChange": False} for action in removed], _REMOVE)
    if removed_before is not None:
        removals = pa.concat_arrays([_as_type(removed_before, _REMOVE), removals])
    kept_s = removed_kept_s(metadata.get("configuration") or {})
    if kept_s is not None:
        since = int(now_ms - (kept_s + DATED_BEFORE_S) * 1000)
        known = Removals(known.version, max(known.ms, since))
        dated = pc.fill_null(pc.struct_field(removals, 1), 0)
        removals = removals.filter(pc.greater_equal(dated, pa.scalar(since, pa.int64())))
    present = _keys(pa.array([action["add"] for action in state if "add" in action], _ADD))
    removals = removals.filter(pc.invert(pc.is_in(_keys(removals), present)))
    rows = pa.concat_tables([_rows(state), _rows_of("remove", removals)])
    rows = rows.replace_schema_metadata({_REMOVALS: json.dumps(asdict(known))})
    size = _write(log, name_of_checkpoint(version), rows)
    last = {"version": version, "size": len(rows), "sizeInBytes": size, "numOfAddFiles": len(present)}
    log.replace(LAST, json.dumps(last).encode())


def _write(log: WarehouseFolder, name: str, rows: pa.Table) -> int:
    """Write a file durably, such that no reader sees a part of it, and return its bytes."""
    if log.path is None:
        return log.write(name, lambda file: pq.write_table(rows, file, compression="zstd"))
    content = io.BytesIO()
    pq.write_table(rows, content, compression="zstd")
    log.create(name, content.getvalue())
    return content.tell()


def _rows(actions: Sequence[Action]) -> pa.Table:
    columns = [pa.array([action.get(field.name) for action in actions], field.type) for field in _SCHEMA]
    return pa.table(columns, schema=_SCHEMA)


def _rows_of(kind: str, actions: pa.Array) -> pa.Table:
    columns = [actions if field.name == kind else pa.nulls(len(actions), field.type) for field in _SCHEMA]
    return pa.table(columns, schema=_SCHEMA)


def _keys(actions: pa.Array) -> pa.Array:
    """Return the keys that identify the files of `add` or `remove` actions: path and deletion vector."""
    vector = pc.struct_field(actions, actions.type.get_field_index("deletionVector"))
    parts = [pc.struct_field(actions, 0), *(pc.struct_field(vector, n).cast(pa.string()) for n in (0, 1, 2))]
    return pc.binary_join_element_wise(*(pc.fill_null(part, "") for part in parts), "\n")


def _as_type(found: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return structs of another writer with the fields of `wanted`; fields that they lack are NULL."""
    if not pa.types.is_struct(wanted):
        return found.cast(wanted)
    present = {found.type.field(n).name: n for n in range(found.type.num_fields)}
    fields = [
        _as_type(pc.struct_field(found, present[field.name]), field.type)
        if field.name in present
        else pa.nulls(len(found), field.type)
        for field in wanted
    ]
    return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=found.is_null())


def remove_expired(log: WarehouseFolder, metadata: Action, now_s: float) -> int:
    """Remove commits and checkpoints that are older than the table keeps its log and that a later checkpoint replaces.
    Return the number of removed files."""
    settings = metadata.get("configuration") or {}
    kept_s = log_kept_s(settings)
    if kept_s is None or settings.get("delta.enableExpiredLogCleanup", "true") != "true":
        return 0
    old = list(_older_than(log, now_s - kept_s))
    replaced_by = max((version for version, name in old if name == name_of_checkpoint(version)), default=0)
    gone = [name for version, name in old if version < replaced_by]
    log.delete(gone)
    return len(gone)


def _older_than(log: WarehouseFolder, before: float) -> Iterable[tuple[int, str]]:
    """Yield the versions and names of the log's files that were written before a time, in order, up to the first commit
    that was not."""
    for name, modified in _files(log):
        found = _OF_VERSION.match(name)
        if found is None or (modified >= before and name.endswith(".json")):
            return
        if modified < before:
            yield int(found[1]), name


def _files(log: WarehouseFolder) -> Iterator[tuple[str, float]]:
    """Yield the names of the log's files, in order, and when each was written. On a disk only the files of versions are
    listed; the other files belong to other programs."""
    if log.path is None:
        yield from ((entry.name, entry.modified) for entry in log.entries())
        return
    for name in filter(_OF_VERSION.match, log.names()):
        with suppress(FileNotFoundError):  # removed in the meantime
            yield name, log.modified_at(name)

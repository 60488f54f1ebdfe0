"""The contents of a Delta table and of its log: what it can hold, and how to recognize one. The engines do the
writing."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import UUID

from cdcflow.tables.merge.acts import Act, Add, Rename, Widen
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.target import FormatColumn, TargetColumn
from cdcflow.tables.paths import table_at
from cdcflow.tables.port import COMMITTED

COLUMN_ID = "delta.columnMapping.id"
HARMLESS = {
    *("OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS", "REORG", "CLUSTER BY"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES"),
}
"""The operations of other writers that change no row."""

TYPES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Spark's names for those types that have another name in SQL."""

REMOVED_KEPT_S = 7 * 86_400.0
"""Minimum age of removed files before they are deleted, whatever cuts are kept: a reader may still use them, and a
writer may not yet have committed a new one. This is Delta's own minimum retention."""

TIME_TRAVEL_ENFORCED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""A setting of the Spark session; if it is on, a version older than its table's retention cannot be read."""

LOG_KEPT_S = 30 * 86_400.0
"""How long versions stay in a table's log: Delta's own default."""

_OWN_DATABASE = "_cdcflow"
_NAME_MAX = 128
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]")

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_TO_B85 = str.maketrans(_Z85, _B85)
_B85_TO_Z85 = str.maketrans(_B85, _Z85)


def _needs(act: Act) -> Mapping[str, str]:
    match act:
        case Add(column) if "timestamp_ntz" in column.type:
            return {"delta.feature.timestampNtz": "supported"}
        case Widen():
            return {"delta.enableTypeWidening": "true"}
    return {}


MAPPING, MARKS = "delta.columnMapping.mode", "delta.enableDeletionVectors"

CHECKPOINTS, CHECKPOINT_EVERY = "delta.checkpointInterval", 50
"""Versions from one checkpoint to the next, for a new table. For each checkpoint Spark computes a table's whole state
again, which takes longer than a small merge, and with Delta's default every tenth merge would wait for that."""

_CHECKPOINTS = {CHECKPOINTS: str(CHECKPOINT_EVERY)}
ROW_INDEX = "_tmp_metadata_row_index"
"""If a column of a Parquet file has this name, Spark returns row numbers instead of its values."""
_NOT_PLAIN = re.compile(r"[ ,;{}()\n\t=]")


def is_plain(name: str, *, has_fields: bool) -> bool:
    """Return whether a table without column mapping may have this column. `has_fields`: it is a column with fields.

    The ids of a table that becomes mapped later are the positions of its columns. Columns after one with fields would
    not keep theirs.
    """
    return _NOT_PLAIN.search(name) is None and not has_fields and name.lower() != ROW_INDEX


def _is_plain(column: TargetColumn) -> bool:
    return is_plain(column.name, has_fields="struct<" in column.type)


def _wide(columns: Sequence[TargetColumn]) -> Mapping[str, str]:
    return _CHECKPOINTS if all(map(_is_plain, columns)) else {MAPPING: "name", **_CHECKPOINTS}


def needs_mapping(act: Act) -> bool:
    """Return whether the act requires a table with column mapping."""
    return isinstance(act, Rename) or (isinstance(act, Add) and not _is_plain(act.column))


def checkpoint_every(properties: Mapping[str, str]) -> int:
    """Return the number of versions between two checkpoints of a table; Delta's default if its property is missing or
    not a number."""
    said = properties.get(CHECKPOINTS, "")
    return int(said) if said.isdecimal() and int(said) else 10


def is_mapped(properties: Mapping[str, str]) -> bool:
    """Return whether the names of a table's columns differ from those in its files."""
    return properties.get(MAPPING, "none") != "none"


RULES = Format(
    "delta",
    properties={
        MAPPING: "name",  # renames without rewriting, and names with spaces
        MARKS: "true",  # a changed row marks the old one instead of rewriting its file
        **_CHECKPOINTS,
    },
    needs=_needs,
    wide=_wide,
)


def retention(keep_s: float, settings: Mapping[str, str], now: float) -> dict[str, str]:
    """Return the properties that a table still needs so that its files and versions outlive the kept cuts. Delta's
    log forgets a removed file after the time in these properties, and a later VACUUM would not know when it was
    removed."""
    wanted = {
        _FILES: max(REMOVED_KEPT_S, 1.25 * keep_s),
        _LOG: max(LOG_KEPT_S, 1.25 * keep_s),
    }
    found = {
        name: f"interval {math.ceil(seconds / 3600)} hours"
        for name, seconds in wanted.items()
        if (there := _set_to(name, settings)) is not None and there < seconds
    }
    if _FILES in found:
        found[_KNOWN_SINCE] = str(int(removals_known_since(settings, now)))
    return found


def removals_known_since(settings: Mapping[str, str], now: float) -> float:
    """Return the time, in seconds since 1970, since when a table's log remembers every file that the table removed;
    `now` if the property cannot be parsed.

    VACUUM takes all other files for unreferenced ones. A removal that was forgotten before the retention was raised
    stays forgotten.
    """
    remembered_s = _set_to(_FILES, settings)
    return now if remembered_s is None else max(now - remembered_s, float(settings.get(_KNOWN_SINCE, "0")))


def _set_to(name: str, settings: Mapping[str, str]) -> float | None:
    if name not in settings:
        return _DEFAULTS[name]
    found = _INTERVAL.fullmatch(settings[name].strip().lower())
    return None if found is None else int(found[1]) * _UNITS[found[2]]


def removed_kept_s(settings: Mapping[str, str]) -> float | None:
    """Return how long a table keeps files that it removed, in seconds; `None` if its property cannot be parsed."""
    return _set_to(_FILES, settings)


def log_kept_s(settings: Mapping[str, str]) -> float | None:
    """Return how long a table keeps its commits, in seconds; `None` if its property cannot be parsed."""
    return _set_to(_LOG, settings)


_UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 7 * 86_400.0}
_INTERVAL = re.compile(rf"(?:interval )?(\d+) ({'|'.join(_UNITS)})s?")
_FILES, _LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_KNOWN_SINCE = "cdcflow.removals_known_since"
_DEFAULTS = {_FILES: REMOVED_KEPT_S, _LOG: LOG_KEPT_S}


def is_in(warehouse: Path) -> bool:
    # Also checked without a cut: the first merge may have died before it published one.
    return any(next(warehouse.glob(logs), None) is not None for logs in ("*/_delta_log", "*/*/_delta_log"))


def metastore_name(path: Sequence[str], prefix: str) -> tuple[str, str]:
    """Return the database and name of the table at a path in a Hive metastore; cdcflow's own tables have a separate
    database.

    A metastore has lower case only. Characters that it does not allow are written as `__XX`, their bytes in UTF-8.
    """
    if len(path) == 1:
        return _allowed_name(prefix + _OWN_DATABASE), _allowed_name(path[0])
    table = table_at("/".join(path))
    return _allowed_name(prefix + table.schema), _allowed_name(table.name)


def _allowed_name(name: str) -> str:
    found = _NOT_IN_NAMES.sub(lambda m: "".join(f"__{byte:02x}" for byte in m[0].encode()), name.lower())
    if len(found) <= _NAME_MAX:
        return found
    return f"{found[: _NAME_MAX - 17]}_{hashlib.sha256(found.encode()).hexdigest()[:16]}"


def user_metadata(metadata: Mapping[str, Any]) -> str:
    """Return the `userMetadata` of a commit by cdcflow."""
    return json.dumps({COMMITTED: metadata}, separators=(",", ":"))


def ours(metadata: str | None) -> Mapping[str, Any] | None:
    """Return the metadata that cdcflow wrote into a commit; `None` if another writer made it."""
    if metadata is None or not metadata.startswith(f'{{"{COMMITTED}":'):
        return None
    found: Mapping[str, Any] = json.loads(metadata)[COMMITTED]
    return found


def vector_path(stored: str) -> str:
    """Return the file of a deletion vector as Delta's protocol names it: an optional folder, then a UUID in Z85."""
    folder, id_ = stored[:-20], stored[-20:]
    uuid = UUID(bytes=from_z85(id_))
    return f"{folder}/deletion_vector_{uuid}.bin" if folder else f"deletion_vector_{uuid}.bin"


def from_z85(text: str) -> bytes:
    """Decode a text in Z85."""
    return base64.b85decode(text.translate(_Z85_TO_B85))


def to_z85(held: bytes) -> str:
    """Encode bytes in Z85; their number must be a multiple of four."""
    return base64.b85encode(held).decode().translate(_B85_TO_Z85)


@lru_cache(maxsize=256)
def columns(schema: str) -> tuple[FormatColumn, ...]:
    """Return the columns of a schema, given as JSON. A table without column mapping has no ids: no column of it is
    renamed or removed, and when it becomes mapped the ids are the positions of the columns."""
    found = []
    for number, field in enumerate(json.loads(schema)["fields"], start=1):
        type_ = field["type"]
        text = TYPES.get(type_, type_) if isinstance(type_, str) else None
        found.append(FormatColumn(field["name"], field["metadata"].get(COLUMN_ID, number), text))
    return tuple(found)

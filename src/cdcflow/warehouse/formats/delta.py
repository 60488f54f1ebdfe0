"""What a Delta table holds, where one is seen, and what its log says. How it is written is an engine's."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from cdcflow.merge.acts import Act, Add, Rename, Widen
from cdcflow.merge.format import Format
from cdcflow.merge.target import FormatColumn, TargetColumn
from cdcflow.warehouse.paths import table_at
from cdcflow.warehouse.port import COMMITTED

COLUMN_ID = "delta.columnMapping.id"
HARMLESS = {
    *("OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS", "REORG", "CLUSTER BY"),
    *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES"),
}
"""Operations that change no row."""

TYPES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Types that SQL calls otherwise."""

REMOVED_KEPT_S = 7 * 86_400.0
"""Files that a table let go of stay at least so long, whatever cuts are kept: a reader may be at them, and a writer may
not have committed a new one yet. Delta's own least retention."""

TIME_TRAVEL_ENFORCED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""Of a Spark session: with it a version cannot be read that is older than its table's retention."""

LOG_KEPT_S = 30 * 86_400.0
"""Versions stay in a table's log so long: Delta's own default."""

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
"""Versions from one checkpoint to the next, of a new table. Spark works a table's whole state out again for each, which
takes longer than a small merge, and Delta's own default has every tenth merge wait for it."""

_CHECKPOINTS = {CHECKPOINTS: str(CHECKPOINT_EVERY)}
ROW_INDEX = "_tmp_metadata_row_index"
"""Of a column that a Parquet file calls so Spark reads the rows' numbers in the file."""
_NOT_PLAIN = re.compile(r"[ ,;{}()\n\t=]")


def is_plain(name: str, *, has_fields: bool) -> bool:
    """Whether a table without column mapping may have a column. Behind one with fields the others would not keep the
    numbers of their places when the table gets mapped."""
    return _NOT_PLAIN.search(name) is None and not has_fields and name.lower() != ROW_INDEX


def _is_plain(column: TargetColumn) -> bool:
    return is_plain(column.name, has_fields="struct<" in column.type)


def _wide(columns: Sequence[TargetColumn]) -> Mapping[str, str]:
    return _CHECKPOINTS if all(map(_is_plain, columns)) else {MAPPING: "name", **_CHECKPOINTS}


def needs_mapping(act: Act) -> bool:
    """Whether it is for a table with column mapping only."""
    return isinstance(act, Rename) or (isinstance(act, Add) and not _is_plain(act.column))


def checkpoint_every(properties: Mapping[str, str]) -> int:
    """Versions from one checkpoint of a table to the next; Delta's default where it says nothing, or no number."""
    said = properties.get(CHECKPOINTS, "")
    return int(said) if said.isdecimal() and int(said) else 10


def is_mapped(properties: Mapping[str, str]) -> bool:
    """Whether names of a table's columns are not those in its files."""
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
    """Properties that a table lacks for its files and versions to outlive the cuts that are kept. Of what is longer
    Delta's log remembers nothing, so a VACUUM could not know."""
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
    """Since when, in seconds since 1970, a table's log remembers every file that it let go of. VACUUM takes the others
    for nobody's. What was forgotten before the table was told to remember longer stays forgotten; `now` where it was
    told in words that are not understood."""
    remembered_s = _set_to(_FILES, settings)
    return now if remembered_s is None else max(now - remembered_s, float(settings.get(_KNOWN_SINCE, "0")))


def _set_to(name: str, settings: Mapping[str, str]) -> float | None:
    if name not in settings:
        return _DEFAULTS[name]
    found = _INTERVAL.fullmatch(settings[name].strip().lower())
    return None if found is None else int(found[1]) * _UNITS[found[2]]


_UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0, "week": 7 * 86_400.0}
_INTERVAL = re.compile(rf"(?:interval )?(\d+) ({'|'.join(_UNITS)})s?")
_FILES, _LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
_KNOWN_SINCE = "cdcflow.removals_known_since"
_DEFAULTS = {_FILES: REMOVED_KEPT_S, _LOG: LOG_KEPT_S}


def is_in(warehouse: Path) -> bool:
    # The first merge may have died before its cut.
    return any(next(warehouse.glob(logs), None) is not None for logs in ("*/_delta_log", "*/*/_delta_log"))


def metastore_name(path: Sequence[str], prefix: str) -> tuple[str, str]:
    """Database and name, in a Hive metastore, of the table at a path; our own tables have a database of their own.

    A metastore has lower case only. What it does not allow is written as `__XX`, its bytes in UTF-8.
    """
    if len(path) == 1:
        return _allowed(prefix + _OWN_DATABASE), _allowed(path[0])
    table = table_at("/".join(path))
    return _allowed(prefix + table.schema), _allowed(table.name)


def _allowed(name: str) -> str:
    found = _NOT_IN_NAMES.sub(lambda m: "".join(f"__{byte:02x}" for byte in m[0].encode()), name.lower())
    if len(found) <= _NAME_MAX:
        return found
    return f"{found[: _NAME_MAX - 17]}_{hashlib.sha256(found.encode()).hexdigest()[:16]}"


def said(metadata: Mapping[str, Any]) -> str:
    """The `userMetadata` of a commit of ours."""
    return json.dumps({COMMITTED: metadata}, separators=(",", ":"))


def ours(metadata: str | None) -> Mapping[str, Any] | None:
    """What a commit of ours said; None: it is not ours."""
    if metadata is None or not metadata.startswith(f'{{"{COMMITTED}":'):
        return None
    found: Mapping[str, Any] = json.loads(metadata)[COMMITTED]
    return found


def vector_path(stored: str) -> str:
    """The file of a deletion vector, as Delta's protocol names it: maybe a folder, then a UUID in Z85."""
    folder, id_ = stored[:-20], stored[-20:]
    uuid = UUID(bytes=from_z85(id_))
    return f"{folder}/deletion_vector_{uuid}.bin" if folder else f"deletion_vector_{uuid}.bin"


def from_z85(text: str) -> bytes:
    """What a text in Z85 holds."""
    return base64.b85decode(text.translate(_Z85_TO_B85))


def to_z85(held: bytes) -> str:
    """Bytes as a text in Z85; as many as four divides."""
    return base64.b85encode(held).decode().translate(_B85_TO_Z85)


def columns(schema: str) -> tuple[FormatColumn, ...]:
    """A schema's columns from its JSON. A table without column mapping has no ids: there, none is renamed or removed,
    and once it is mapped their ids are the numbers of their places."""
    found = []
    for number, field in enumerate(json.loads(schema)["fields"], start=1):
        type_ = field["type"]
        text = TYPES.get(type_, type_) if isinstance(type_, str) else None
        found.append(FormatColumn(field["name"], field["metadata"].get(COLUMN_ID, number), text))
    return tuple(found)

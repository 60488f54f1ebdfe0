"""What a Delta table holds, where one is seen, and what its log says. How it is written is an engine's."""

from __future__ import annotations

import base64
import hashlib
import json
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
HARMLESS = {"OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS", "REORG", "CLUSTER BY"}
"""Operations that change no row."""

TYPES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Types that SQL calls otherwise."""

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
_NOT_PLAIN = re.compile(r"[ ,;{}()\n\t=]")


def is_plain(name: str, *, has_fields: bool) -> bool:
    """Whether a table without column mapping may have a column. Behind one with fields the others would not keep the
    numbers of their places when the table gets mapped."""
    return _NOT_PLAIN.search(name) is None and not has_fields


def _is_plain(column: TargetColumn) -> bool:
    return is_plain(column.name, has_fields="struct<" in column.type)


def _wide(columns: Sequence[TargetColumn]) -> Mapping[str, str]:
    return {} if all(map(_is_plain, columns)) else {MAPPING: "name"}


def needs_mapping(act: Act) -> bool:
    """Whether it is for a table with column mapping only."""
    return isinstance(act, Rename) or (isinstance(act, Add) and not _is_plain(act.column))


def is_mapped(properties: Mapping[str, str]) -> bool:
    """Whether names of a table's columns are not those in its files."""
    return properties.get(MAPPING, "none") != "none"


RULES = Format(
    "delta",
    properties={
        MAPPING: "name",  # renames without rewriting, and names with spaces
        MARKS: "true",  # a changed row marks the old one instead of rewriting its file
    },
    needs=_needs,
    wide=_wide,
)


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

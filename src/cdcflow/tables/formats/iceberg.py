"""The contents of an Iceberg table: what it can hold, how to recognize one, and what cdcflow's snapshots record. The
engines do the writing.

    <warehouse>/_cdcflow_catalog.db    the catalog: SQLite with the tables of Iceberg's JDBC catalog, which makes a
                                       commit one row's change
    <warehouse>/<schema>/<table>/      data and metadata

A version is a snapshot's sequence number: it grows with every change of rows, which a snapshot's id does not. A summary
belongs to one snapshot only, so each of cdcflow's snapshots repeats what the earlier ones recorded. For a snapshot that
another writer made, the latest ancestor that cdcflow made counts. A version that a cut shows gets a tag, so that
expire_snapshots keeps it.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdcflow.model.file_layout import FileLayout, PartitionField
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import COMMITTED, ROW_GROUP_BYTES

CATALOG = "_cdcflow_catalog.db"
TRANSACTIONS = f"{COMMITTED}.transactions"
"""The key, in a snapshot's summary, of the latest version that each writer recorded."""

BRANCH_S = 86_400.0
"""The age, in seconds, at which a branch counts as abandoned: no change of rows takes this long, so its process was
killed."""

CATALOG_CLASSES: Mapping[str, str] = {
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.jdbc.JdbcCatalog": "jdbc",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
}
"""Iceberg's own classes of catalogs, which `catalog-impl` can name, and their types."""

PLAIN_NAMES = ("hive", "glue")
"""The types of catalogs in which a name has lower-case letters, digits and `_` only."""

_OWN_NAMESPACE = "_cdcflow"
_SMALL_INTEGERS = re.compile(r"\b(tinyint|smallint)\b")
_TYPES = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}
"""Iceberg's types that have another name in SQL."""
_PLAIN = {"int", "float", "double", "boolean", "string", "binary", "date"}
_NAME = re.compile(r"\w+", re.ASCII)
_TAG = re.compile(r"cdcflow_cut_(\d+)")
_BRANCH = re.compile(r"cdcflow_fold_(\d+)_[0-9a-f]+")
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


def _holds(type_: str) -> str:
    return _SMALL_INTEGERS.sub("int", type_)


def _widens(old: str, new: str) -> bool:
    """Return whether the format can change a column from type `old` to `new`
    (https://iceberg.apache.org/spec/#schema-evolution, format version 2)."""
    if (old, new) in {("int", "bigint"), ("float", "double")}:
        return True
    was, now = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    return was is not None and now is not None and was[2] == now[2] and int(was[1]) <= int(now[1])


ROW_GROUPS = "write.parquet.row-group-size-bytes"
"""The table property for the size of row groups (see `ROW_GROUP_BYTES`). Only Spark applies it."""

_MODES = ("write.delete.mode", "write.update.mode", "write.merge.mode")
REWRITES = "copy-on-write"
"""The value of the properties for a table whose files are rewritten when a row changes."""


def _properties(mode: str) -> Mapping[str, str]:
    return {
        "format-version": "2",
        **dict.fromkeys(_MODES, mode),
        ROW_GROUPS: str(ROW_GROUP_BYTES),
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "50",
    }


def marks(properties: Mapping[str, str]) -> bool:
    """Return whether changed rows of a table are marked in their files, so that the files are not rewritten."""
    return properties.get("write.merge.mode") != REWRITES


RULES = Format(
    "iceberg",
    properties=_properties("merge-on-read"),
    holds=_holds,
    widens=_widens,
    wide=lambda columns: _properties(REWRITES),
    has_partitions=True,
)


def is_in(warehouse: Path) -> bool:
    return (warehouse / CATALOG).exists()


def catalog_name(warehouse: Warehouse) -> str:
    """Return the catalog's name, which its database stores with each table."""
    return f"cdcflow_{hashlib.sha256(warehouse.location_of(()).encode()).hexdigest()[:12]}"


def catalog_type(catalog: Mapping[str, str]) -> str:
    """Return the type of the catalog with these properties, in lower case; if it is not one of Iceberg's own, the class
    that `catalog-impl` names."""
    named = catalog.get("catalog-impl")
    return catalog.get("type", "").lower() if named is None else CATALOG_CLASSES.get(named, named)


def identifier(path: Sequence[str]) -> tuple[str, str]:
    """Return the namespace and name of the table at a path; cdcflow's own tables have a separate namespace."""
    namespace, name = path if len(path) > 1 else (_OWN_NAMESPACE, *path)
    return _part(namespace), _part(name)


def _part(part: str) -> str:
    """Escape a part of a path for use in a name: a dot would begin another namespace."""
    return part.replace(".", "~2E")


def check_name(identifier: Sequence[str], catalog: str) -> None:
    """Check that a catalog of this type can have a table of this namespace and name.

    Raises:
        CannotFollow: it cannot have one.
    """
    if catalog in PLAIN_NAMES and not all(map(_NAME.fullmatch, identifier)):
        raise CannotFollow(
            f"table {'.'.join(identifier)} cannot be merged: a {catalog} catalog has no names with other characters"
            " than letters, digits and _",
            remedy="rename the table at the source, exclude it from the capture, or use another kind of catalog",
        )


def partition_name(field: PartitionField, taken: Collection[str]) -> str:
    """Return a name for a new field of a table's partition. `taken`: names that it cannot have, in lower case.

    It differs from the name of any column, also if the column is renamed and a new one gets its name: the format
    refuses a column whose name a partition has.
    """
    plain = re.sub(r"[^A-Za-z0-9_]", "_", field.column)
    number = f"_{field.number}" if field.number else ""
    found = name = f"{plain}_{field.transform}{number}"
    count = 1
    while found.lower() in taken:
        count += 1
        found = f"{name}_{count}"
    return found


def distribution(layout: FileLayout) -> Mapping[str, str]:
    """Return the property that determines how Spark distributes rows to files. Without it Spark would sort a table as a
    whole, and for that read twice what it writes; with it, only the rows of each file are sorted."""
    return {"write.distribution-mode": "hash" if layout.partitions else "none"}


def tag(cut: int) -> str:
    """Return the tag of a version that a cut shows."""
    return f"cdcflow_cut_{cut}"


def expired_tags(tags: Mapping[str, int], kept: Collection[int], oldest: int) -> list[str]:
    """Return cdcflow's tags that no kept cut needs: the tag's own cut has expired, and no later cut shows that version.
    `tags` maps each tag to its version."""
    ours = {tag: found for tag in tags if (found := _TAG.fullmatch(tag)) is not None}
    return [tag for tag, found in ours.items() if int(found[1]) < oldest and tags[tag] not in kept]


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot that a table keeps. `committed`: in seconds since 1970. `tells`: its summary contains the records of
    its writers."""

    id: int
    version: int
    parent: int | None
    committed: float
    tells: bool


def branch(now: float) -> str:
    """Return a name for a branch on which rows are changed before the table itself is. It contains `now`, in seconds
    since 1970."""
    return f"cdcflow_fold_{now:.0f}_{uuid.uuid4().hex}"


def abandoned_branches(refs: Collection[str], now: float) -> list[str]:
    """Return the names of cdcflow's branches that no process works on any longer."""
    ours = {name: found for name in refs if (found := _BRANCH.fullmatch(name)) is not None}
    return [name for name, found in ours.items() if int(found[1]) < now - BRANCH_S]


def expired_snapshots(
    snapshots: Sequence[KeptSnapshot],
    current: int | None,
    referred: Collection[int],
    kept: Collection[int],
    since: float,
) -> list[int]:
    """Return the ids of the snapshots to expire: those older than `since` that no reference names and no kept cut
    shows. The latest snapshot by cdcflow stays as well, because it records the table's position."""
    by_id = {one.id: one for one in snapshots}
    needed = set(referred)
    while current is not None and current in by_id:
        needed.add(current)
        if by_id[current].tells:
            break
        current = by_id[current].parent
    return [one.id for one in snapshots if one.id not in needed and one.version not in kept and one.committed < since]


def type_sql(type_: str) -> str | None:
    """Return Spark's text for a type of Iceberg; `None` for a nested type."""
    decimal = _DECIMAL.fullmatch(type_)
    if decimal is not None:
        return f"decimal({decimal[1]},{decimal[2]})"
    return _TYPES.get(type_, type_) if type_ in _TYPES or type_ in _PLAIN else None

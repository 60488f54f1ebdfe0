"""What a Delta table knows of itself, and commits that carry our position.

The state is read through Delta's own `DeltaLog` (7 ms) and not with DESCRIBE HISTORY (200 ms, and old entries expire).
The transaction ids that a table keeps in its snapshot outlive both checkpoints and clean-ups of its log.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

from cdcflow.merge.evolution import FormatColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_MARK = "cdcflow"
_COLUMN_ID = "delta.columnMapping.id"
_CONFLICT = re.compile(r"DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)|io\.delta\.exceptions\.")
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_TO_B85 = str.maketrans(_Z85, _B85)
_TYPES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
"""Types that SQL calls otherwise."""
_HARMLESS = {"OPTIMIZE", "VACUUM START", "VACUUM END", "COMPUTE STATS", "REORG", "CLUSTER BY"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table's newest version. `id` is the table's own: another table at the same path has another one.
    `transactions`: the newest version that each writer recorded with its data."""

    id: str
    version: int
    properties: Mapping[str, str]
    transactions: Mapping[str, int]
    columns: tuple[FormatColumn, ...]


def snapshot(spark: SparkSession, path: Path) -> Snapshot | None:
    """The newest version of the table at `path`; None where there is none."""
    nothing: Any = spark._jvm.scala.Option.empty()  # type: ignore[union-attr]  # py4j gives what the other side has
    found = _delta_log(spark, path).update(False, nothing, nothing)
    return None if found.version() < 0 else _snapshot(spark, found)


def version_of(spark: SparkSession, path: Path, version: int) -> Snapshot | None:
    """A version of the table at `path`; None where its log does not have it any more."""
    found = _version_of(spark, path, version)
    return None if found is None else _snapshot(spark, found)


def files_gone(spark: SparkSession, path: Path, version: int) -> bool:
    """Whether files of a version are not there. Only those are looked for that the newest version does not have:
    nobody removes the others."""
    from pyspark.sql import DataFrame

    nothing: Any = spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
    old, new = _version_of(spark, path, version), _delta_log(spark, path).update(False, nothing, nothing)
    columns = ("path", "deletionVector.storageType AS kind", "deletionVector.pathOrInlineDv AS vector")
    files, present = (DataFrame(s.allFiles().toDF(), spark).selectExpr(*columns) for s in (old, new))
    for row in files.exceptAll(present).toLocalIterator():
        needed = [unquote(urlsplit(row.path).path)]
        if row.kind == "u":
            needed.append(_vector_path(row.vector))
        elif row.kind == "p":
            needed.append(unquote(urlsplit(row.vector).path))
        if not all((path / name).exists() for name in needed):
            return True
    return False


def _vector_path(stored: str) -> str:
    """The file of a deletion vector, as Delta's protocol names it: maybe a folder, then a UUID in Z85."""
    folder, id_ = stored[:-20], stored[-20:]
    uuid = UUID(bytes=base64.b85decode(id_.translate(_Z85_TO_B85)))
    return f"{folder}/deletion_vector_{uuid}.bin" if folder else f"deletion_vector_{uuid}.bin"


def _delta_log(spark: SparkSession, path: Path) -> Any:  # Any: py4j gives whatever the other side has
    jvm: Any = spark._jvm
    session: Any = spark._jsparkSession
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, str(path))


def _version_of(spark: SparkSession, path: Path, version: int) -> Any:
    log = _delta_log(spark, path)
    defaults = (getattr(log, f"getSnapshotAt$default${n}")() for n in (2, 3, 4))
    try:
        return log.getSnapshotAt(version, *defaults)
    except Exception as error:
        if "DELTA_" in str(error) or "FileNotFound" in str(error):  # the log begins later
            return None
        raise


def _snapshot(spark: SparkSession, found: Any) -> Snapshot:
    jvm: Any = spark._jvm
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    return Snapshot(
        id=str(found.metadata().id()),
        version=int(found.version()),
        properties={str(k): str(v) for k, v in dict(as_java(found.metadata().configuration())).items()},
        transactions={str(k): int(v) for k, v in dict(as_java(found.transactions())).items()},
        columns=_columns(str(found.schema().json())),
    )


def is_conflict(error: BaseException) -> bool:
    """Whether a statement failed because somebody else committed to the table meanwhile (OPTIMIZE does): nothing of it
    was done, and it may be said again."""
    return _CONFLICT.search(str(error)) is not None


def _columns(schema: str) -> tuple[FormatColumn, ...]:
    """A schema's columns from its JSON. A table without column mapping has no ids: there, columns never change."""
    found = []
    for number, field in enumerate(json.loads(schema)["fields"], start=1):
        type_ = field["type"]
        text = _TYPES.get(type_, type_) if isinstance(type_, str) else None
        found.append(FormatColumn(field["name"], field["metadata"].get(_COLUMN_ID, number), text))
    return tuple(found)


@contextmanager
def committing(spark: SparkSession, metadata: Mapping[str, object], app: str = "", version: int = 0) -> Iterator[None]:
    """Commits inside carry `metadata`, and with `app` also the transaction (app, version): a second one is skipped.

    The settings belong to the whole session, so two threads must not commit through one session at a time. They are
    taken back at the end, whatever happens: left there, they would make Delta drop the next write without a word.
    """
    conf = spark.conf
    conf.set(_METADATA, json.dumps({_MARK: metadata}, separators=(",", ":")))
    if app:
        conf.set(_APP, app)
        conf.set(_VERSION, str(version))
    try:
        yield
    finally:
        for setting in (_METADATA, _APP, _VERSION):
            conf.unset(setting)


def edits_since(spark: SparkSession, table: str, version: int) -> list[str]:
    """What someone else did to a table's rows after `version`: `operation@version`, newest first."""
    rows = spark.sql(f"DESCRIBE HISTORY {table}").where(f"version > {version}").collect()
    return [
        f"{row.operation}@{row.version}"
        for row in rows
        if row.operation not in _HARMLESS and not (row.userMetadata or "").startswith(f'{{"{_MARK}":')
    ]

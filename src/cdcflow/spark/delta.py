"""What a Delta table knows of itself, and commits that carry our position.

The state is read through Delta's own `DeltaLog` (7 ms) and not with DESCRIBE HISTORY (200 ms, and old entries expire).
The transaction ids that a table keeps in its snapshot outlive both checkpoints and clean-ups of its log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcflow.merge.evolution import FormatColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_MARK = "cdcflow"
_COLUMN_ID = "delta.columnMapping.id"
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
    jvm: Any = spark._jvm  # Any: py4j gives whatever the other side has
    session: Any = spark._jsparkSession
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, str(path))
    nothing = jvm.scala.Option.empty()
    found = log.update(False, nothing, nothing)
    if found.version() < 0:
        return None
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    return Snapshot(
        id=str(found.metadata().id()),
        version=int(found.version()),
        properties={str(k): str(v) for k, v in dict(as_java(found.metadata().configuration())).items()},
        transactions={str(k): int(v) for k, v in dict(as_java(found.transactions())).items()},
        columns=_columns(str(found.schema().json())),
    )


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

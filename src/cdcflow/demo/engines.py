"""The engines that read the demo's tables back: Spark, or the engine without it.

The local one's proof is plain Python over Arrow's values: it shares no code with the engine that made the tables.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

from cdcflow.config import load
from cdcflow.demo import logs, proof
from cdcflow.demo.databases import Digest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EngineKind = Literal["spark", "local"]
PATIENCE_S = 120.0
# The demo's Java runs for two minutes: compiling quickly is worth more than compiling well.
QUICK_JAVA = {
    # The flag alone leaves 48 MB for compiled code.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
}
_SPLIT = 1 << 40


class DemoEngine(Protocol):
    """Reads tables of the published cut."""

    name: str

    def cut(self) -> Mapping[str, Any]:
        """Return the tables of the published cut, by table name, in this engine's form."""
        ...

    def orphans(self, cut: Mapping[str, Any], schema: str) -> dict[str, int]:
        """Return the number of rows of the cut that refer to a missing row. It must be 0, because the writer commits
        a flight together with its plane and airline."""
        ...

    def digest(self, table: Any, columns: Sequence[tuple[str, str]]) -> Digest:
        """Return rows and content hash of a table, as `proof` describes."""
        ...

    def stop(self) -> None: ...


class Spark:
    """Spark in a separate process, which starts in the background."""

    name = "Spark"

    def __init__(self, directory: Path, log: logs.DemoLog, table_format: str, in_store: bool) -> None:
        self._config = directory / "cdcflow.yaml"
        self._background = ThreadPoolExecutor(1, "spark")
        self._session = self._background.submit(
            _start_spark, directory / "spark.log", isinstance(log, logs.DemoTopic), table_format, in_store
        )

    def cut(self) -> Mapping[str, DataFrame]:
        from cdcflow import wiring
        from cdcflow.spark import read_cut

        return read_cut(self._session.result(PATIENCE_S), wiring.warehouse(load(self._config)))

    def orphans(self, cut: Mapping[str, DataFrame], schema: str) -> dict[str, int]:
        made = cut[f"{schema}.flights"]
        ours = made.where("tailnum LIKE 'X%'")
        return {
            "flights without their airline": made.join(cut[f"{schema}.airlines"], "carrier", "left_anti").count(),
            "flights without their plane": ours.join(cut[f"{schema}.planes"], "tailnum", "left_anti").count(),
        }

    def digest(self, table: DataFrame, columns: Sequence[tuple[str, str]]) -> Digest:
        return proof.target_digest(table, columns)

    def stop(self) -> None:
        try:
            self._session.result().stop()
        finally:
            self._background.shutdown()


class Local:
    """The engine without Spark and Java, in this process."""

    name = "cdcflow without Spark"

    def __init__(self, directory: Path) -> None:
        self._config = directory / "cdcflow.yaml"

    def cut(self) -> Mapping[str, pa.Table]:
        from cdcflow import local, wiring

        return local.read_cut(wiring.warehouse(load(self._config)))

    def orphans(self, cut: Mapping[str, pa.Table], schema: str) -> dict[str, int]:
        def values(table: str, column: str) -> list[Any]:  # Any: of a cell
            return list(cut[f"{schema}.{table}"][column].to_pylist())

        airlines, planes = set(values("airlines", "carrier")), set(values("planes", "tailnum"))
        ours = [name for name in values("flights", "tailnum") if name is not None and name.startswith("X")]
        return {
            "flights without their airline": sum(name not in airlines for name in values("flights", "carrier")),
            "flights without their plane": sum(name not in planes for name in ours),
        }

    def digest(self, table: pa.Table, columns: Sequence[tuple[str, str]]) -> Digest:
        texts = [_counted_texts(table[name], kind) for name, kind in columns]
        first = second = 0
        for row in zip(*texts, strict=True):
            found = hashlib.sha256("".join(row).encode()).hexdigest()
            first += int(found[:15], 16)
            second += int(found[15:30], 16)
        return Digest(table.num_rows, f"{first:x}.{second:x}")

    def stop(self) -> None:
        pass


def demo_engine(
    kind: EngineKind, directory: Path, log: logs.DemoLog, table_format: str, *, in_store: bool
) -> DemoEngine:
    """Return the engine, which finds the tables by the demo's settings; Spark begins to start."""
    return Spark(directory, log, table_format, in_store) if kind == "spark" else Local(directory)


def _counted_texts(column: pa.ChunkedArray, kind: str) -> list[str]:
    values, text = _plain(column, kind)
    texts = (None if value is None else text(value) for value in values)
    return ["-" if one is None else f"+{len(one)}:{one}" for one in texts]


def _plain(column: pa.ChunkedArray, kind: str) -> tuple[list[Any], Callable[[Any], str]]:  # Any: of a cell
    match kind:
        case "real" | "double precision":
            return column.to_pylist(), _float_text
        case "timestamp with time zone":
            return column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist(), str
        case "date":
            return column.cast(pa.int32()).to_pylist(), str
        case "bytea":
            return column.to_pylist(), bytes.hex
        case "numeric":
            return column.to_pylist(), lambda value: format(value, "f")
        case "boolean":
            return column.to_pylist(), lambda value: "true" if value else "false"
    return column.to_pylist(), str


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    size = abs(value)
    if size > 9e18:
        return "huge"
    whole = math.floor(size)
    fraction = (size - whole) * _SPLIT
    first = math.floor(fraction)
    second = math.floor((fraction - first) * _SPLIT)
    return f"{'-' if value < 0 else ''}{whole}.{first}.{second}"


def _start_spark(log: Path, kafka: bool, table_format: str, in_store: bool) -> SparkSession:
    """Return a Spark session whose Java process writes its warnings into `log` instead of to the terminal."""
    from cdcflow.spark.session import session

    with log.open("ab") as file:
        ours = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            return session(
                name="cdcflow demo", settings=QUICK_JAVA, kafka=kafka, s3=in_store, table_formats=[table_format]
            )
        finally:
            os.dup2(ours, 2)
            os.close(ours)

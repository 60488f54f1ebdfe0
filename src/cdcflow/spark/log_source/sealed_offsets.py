"""The offset to which a log in files is sealed, as a Python data source for Spark that has offsets, and no rows.

    Spark ──latestOffset──▶ planning process ──Unix socket──▶ driver: the log's listing ──▶ {"offset": 1200, "run": …}

Spark queries a data source in a separate process, which has the environment of the driver's JVM and perhaps not this
package. So that process only forwards the request: the driver lists the log itself, as the merge does, with its own
settings. Secrets are not sent anywhere, and a query's checkpoint contains only offsets. Executors do nothing.

`run` is different for each query, so that each begins with a batch, whatever its checkpoint contains: the tables know
better than a checkpoint what was merged.
"""

from __future__ import annotations

import json
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

NAME = "cdcflow_log"
_LOOK_S = 1.0


class OffsetServer:
    """Answers the planning process of one query, in a thread of the driver."""

    def __init__(self, newest: Callable[[], int]) -> None:
        """`newest` returns the offset to which the log is sealed (0: nothing is); it may block."""
        self._newest = newest
        self._run = uuid4().hex
        self._room = tempfile.TemporaryDirectory(prefix="cdcflow-")  # only its owner can open it
        self.path = str(Path(self._room.name) / "offsets")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen(1)

    def start(self, is_wanted: Callable[[], bool]) -> None:
        """Answer until the planning process ends. Until it has connected, wait only as long as `is_wanted` returns
        True."""
        threading.Thread(target=self._serve, args=(is_wanted,), name="cdcflow-offsets", daemon=True).start()

    def _serve(self, is_wanted: Callable[[], bool]) -> None:
        with self._room, self._socket:
            asked = self._accept(is_wanted)
            if asked is None:
                return
            with asked, asked.makefile("r") as questions:
                try:
                    for _ in questions:
                        asked.sendall(f"{json.dumps(self._answer())}\n".encode())
                except OSError:
                    return  # it ended before it got its answer

    def _accept(self, is_wanted: Callable[[], bool]) -> socket.socket | None:
        self._socket.settimeout(_LOOK_S)
        while is_wanted():
            try:
                asked, _ = self._socket.accept()
            except TimeoutError:
                continue
            asked.settimeout(None)
            return asked
        return None

    def _answer(self) -> Mapping[str, object]:
        try:
            return {"offset": self._newest(), "run": self._run}
        except Exception as error:  # noqa: BLE001 - whatever it is, the query ends with it  whatever the error is, the query ends with it
            return {"error": f"{type(error).__name__}: {error}"}


def source_of(path: str) -> type[DataSource]:
    """Return the data source that queries a socket.

    Spark sends classes that are defined in a function by value, and not as a reference to their module. So they may use
    only modules that are imported in the function.
    """

    class SealedOffsets(DataSourceStreamReader):
        asking: socket.socket | None = None

        def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
            return {"offset": 0, "run": ""}

        def latestOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
            if self.asking is None:
                self.asking = socket.socket(socket.AF_UNIX)
                self.asking.connect(path)
            self.asking.sendall(b"\n")
            with self.asking.makefile("r") as answers:
                answer: dict[str, object] = json.loads(answers.readline() or '{"error": "the driver has gone"}')
            if "error" in answer:
                raise RuntimeError(answer["error"])
            return answer

        def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
            return []

        def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
            return iter(())

    class LogSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return "offset BIGINT"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
            return SealedOffsets()

    return LogSource

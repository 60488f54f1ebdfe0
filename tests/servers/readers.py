"""Programs that read our tables with libraries of other versions than the tests have: DuckDB with its own extensions,
and ClickHouse as a library. Each has a folder in the user's cache, and runs in a separate process (`READ`).

    found = DuckDB().read([Question("delta", "/lake/shop/orders")])

DuckDB is the latest version for which the package index has the extensions, since DuckDB itself fetches them from
elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from tests.servers import downloads

from cdcflow.demo.servers.cached import cache

DUCKDB = "1.5.5"
EXTENSIONS = ("avro", "httpfs", "delta", "iceberg", "ducklake")
CLICKHOUSE = "26.9.0"
READ = Path(__file__).parents[1] / "support" / "readers" / "read.py"


@dataclass(frozen=True, slots=True)
class Question:
    """A table to read: its format, and where it is (Delta: its folder; Iceberg: a file of metadata for DuckDB, a folder
    for ClickHouse). Or, for another kind of `format`, `sql` alone; `before` are statements to execute first.
    """

    format: str
    place: str = ""
    sql: str = ""
    before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Store:
    """The S3-compatible store that tables are in."""

    endpoint: str
    key: str
    secret: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The first line of a reader's error."""

    why: str


class Program:
    """A reader with its own libraries, fetched at the first use."""

    name: ClassVar[str]
    packages: ClassVar[Sequence[str]]

    def libraries(self) -> Path:
        """The folder of the libraries, whole or not at all.

        Raises:
            SourceUnavailable: they could not be fetched.
        """
        place = cache() / "-".join((self.name, self.packages[0].rpartition("=")[2], sys.implementation.cache_tag))
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                with tempfile.TemporaryDirectory(prefix=f"cdcflow-{self.name}-", dir=cache()) as room:
                    target = Path(room) / "libraries"
                    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
                    downloads.run([*command, "--target", str(target), *self.packages], f"fetching {self.name}")
                    target.rename(place)
        return place

    def read(self, questions: Sequence[Question], store: Store | None = None) -> list[pa.Table | Refused]:
        """Its answer to each question, in a process that has its libraries first on its path."""
        with tempfile.TemporaryDirectory(prefix=f"cdcflow-{self.name}-") as room:
            asked = {
                "program": self.name,
                "libraries": str(self.libraries()),
                "store": None if store is None else asdict(store),
                "questions": [asdict(question) for question in questions],
            }
            done = subprocess.run(
                [sys.executable, str(READ), room], input=json.dumps(asked), capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            return [_answer(Path(room) / str(n)) for n in range(len(questions))]


def _answer(file: Path) -> pa.Table | Refused:
    if not file.with_suffix(".arrow").exists():
        return Refused(file.with_suffix(".error").read_text())
    with pa.ipc.open_file(file.with_suffix(".arrow")) as reader:
        return reader.read_all()


class DuckDB(Program):
    """DuckDB and its own extensions for Delta, Iceberg and DuckLake."""

    name = "duckdb"
    packages = (f"duckdb=={DUCKDB}", *(f"duckdb-extension-{extension}=={DUCKDB}" for extension in EXTENSIONS))


class ClickHouse(Program):
    """ClickHouse's engine as a library, chDB."""

    name = "clickhouse"
    packages = (f"chdb-core=={CLICKHOUSE}",)


def main() -> int:
    DuckDB().libraries()
    return 0


__all__ = ["CLICKHOUSE", "DUCKDB", "ClickHouse", "DuckDB", "Program", "Question", "Refused", "Store"]


if __name__ == "__main__":
    sys.exit(main())

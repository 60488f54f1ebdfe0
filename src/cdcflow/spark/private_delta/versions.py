"""The versions of a Delta table, as Delta reads them from its log.

Through Delta's own `DeltaLog` a read takes 7 ms. DESCRIBE HISTORY takes 200 ms, and its old entries expire. Ids,
transactions and the number of files are taken from a version's checksum file: computing them from the log would need
Spark jobs. The transaction ids that a table keeps outlive both checkpoints and clean-ups of its log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from cdcflow.spark.private_delta.classes import DeltaJvm, delta_jvm, is_fast
from cdcflow.tables.formats.delta import columns, vector_path
from cdcflow.tables.formats.delta_commits import identity, lines_of
from cdcflow.tables.job.failures import reading
from cdcflow.tables.port import TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW_FILES = 16
"""Up to this many files, a plan lists them; Delta need not find them in the version's state."""


class DeltaVersions:
    """The versions of the table at a path. A version is Delta's snapshot object, which callers only pass back."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path

    @property
    def log(self) -> Any:  # Any, here and below: py4j gives whatever the other side has
        """Delta's log of the table."""
        return self._parts.logs.forTable(self._parts.active(self._spark), self._path)

    @property
    def _parts(self) -> DeltaJvm:
        return delta_jvm(self._spark)

    def newest(self) -> Any:
        """Return the latest version, read from the log again; its number is -1 if the table does not exist."""
        nothing = self._parts.nothing
        return self.log.update(False, nothing, nothing)

    def newest_number(self) -> int:
        """Return the number of the latest version; -1 if the table does not exist."""
        return int(self.newest().version())

    def find(self, version: int) -> Any:
        """Return a version; `None` if the log no longer has it."""
        log = self.log
        defaults = (getattr(log, f"getSnapshotAt$default${n}")() for n in (2, 3, 4))
        try:
            return log.getSnapshotAt(version, *defaults)
        except Exception as error:
            if "DELTA_" in str(error) or "FileNotFound" in str(error):  # the log begins later
                return None
            raise

    def read_again(self) -> None:
        """Drop Delta's cache of the log, because files of the log were replaced."""
        self._parts.logs.invalidateCache(self._parts.active(self._spark), self._parts.paths(self._path))

    def settings(self, found: Any) -> Mapping[str, str]:
        """Return the table properties of a version."""
        settings: Mapping[str, str] = self._parts.content_of(found.metadata())["configuration"]
        return settings

    def describe(self, found: Any) -> TableSnapshot:
        """Return the table's description at a version."""
        metadata = self._parts.content_of(found.metadata())
        checksum = found.checksumOpt()
        # The commit itself takes precedence over a checksum, or this driver's cache.
        lines = self.commit_lines(int(found.version()))
        newest = {a["txn"]["appId"]: int(a["txn"]["version"]) for a in map(json.loads, lines) if "txn" in a}
        return TableSnapshot(
            id=metadata["id"],
            version=int(found.version()),
            properties=metadata["configuration"],
            transactions={**self.transactions(found), **newest},
            columns=columns(metadata["schemaString"]),
            is_empty=bool(checksum.isDefined()) and int(checksum.get().numFiles()) == 0,
            commit=identity(lines) if lines else "",
        )

    def transactions(self, found: Any) -> Mapping[str, int]:
        """Return the latest version that each writer recorded, as of a version of the table."""
        checksum = found.checksumOpt()
        if checksum.isDefined() and checksum.get().setTransactions().isDefined():
            listed = self._parts.content_of(checksum.get().setTransactions().get())
            return {one["appId"]: int(one["version"]) for one in listed}
        return {app: int(version) for app, version in self._parts.content_of(found.transactions()).items()}

    def actions(self, found: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the actions of a version's commit; empty if it was cleaned up after a checkpoint."""
        version = int(found.version())
        with reading(f"{self._path}/_delta_log/{version:020d}.json"):
            actions = [json.loads(line) for line in self.commit_lines(version)]
        yield from actions

    def commit_lines(self, version: int) -> list[str]:
        """Return the lines of a version's commit; empty if it was cleaned up after a checkpoint."""
        log = self.log
        file = self._parts.file_names.unsafeDeltaFile(log.logPath(), version)
        try:
            return lines_of(str(log.store().read(file, log.newDeltaHadoopConf()).mkString("\n")))
        except Exception as error:
            if "FileNotFound" in str(error):
                return []
            raise

    def plan_of_few_files(self, version: int) -> DataFrame | None:
        """Return a plan of a version's rows that contains its files; `None` if Delta has to find them in the version's
        state, because they are many, or `merge.fast_delta` is off.

        For a table with deletion vectors Delta itself finds them three times for a query with a join, with a job each
        time, which for a small table takes longer than the query.
        """
        from pyspark.sql import DataFrame

        found = self.find(version)
        if found is None or not is_fast(self._spark):
            return None
        checksum = found.checksumOpt()
        if not (checksum.isDefined() and checksum.get().allFiles().isDefined()):
            return None
        files = checksum.get().allFiles().get()
        if files.size() > FEW_FILES:
            return None
        return DataFrame(self.log.createDataFrame(found, files, False, self._parts.nothing), self._spark)

    def misses_files(self, version: int) -> bool:
        """Return whether files of a version are missing. Only files that the latest version does not have are checked:
        the others are never removed."""
        from pyspark.sql import DataFrame

        old, new = self.find(version), self.newest()
        log = self.log
        there = log.dataPath().getFileSystem(log.newDeltaHadoopConf())
        chosen = ("path", "deletionVector.storageType AS kind", "deletionVector.pathOrInlineDv AS vector")
        files, present = (DataFrame(s.allFiles().toDF(), self._spark).selectExpr(*chosen) for s in (old, new))
        for row in files.exceptAll(present).toLocalIterator():
            needed = [unquote(urlsplit(row.path).path)]
            if row.kind == "u":
                needed.append(vector_path(row.vector))
            elif row.kind == "p":
                needed.append(unquote(urlsplit(row.vector).path))
            if not all(there.exists(self._parts.paths(self._path, name)) for name in needed):
                return True
        return False

    def count_files(self) -> int:
        """Return how many files the table's folder has."""
        path = self._parts.paths(self._path)
        return int(path.getFileSystem(self.log.newDeltaHadoopConf()).getContentSummary(path).getFileCount())

    def remove_empty_folders(self, folder: str) -> bool:
        """Remove empty folders. Return False if there is a file in one of them; such a folder stays. A store needs no
        folders to write files."""
        path = self._parts.paths(folder)
        files = path.getFileSystem(self.log.newDeltaHadoopConf())
        try:
            inside = list(files.listStatus(path))
            empty = all(one.isDirectory() and self.remove_empty_folders(str(one.getPath())) for one in inside)
            return empty and bool(files.delete(path, False))
        except Exception as error:
            if "FileNotFound" in str(error):
                return True
            if "PathIsNotEmptyDirectory" in str(error) or "is not empty" in str(error):
                return False
            raise

"""The log of a Delta table in a folder: what it says stands, and one version more.

    _delta_log/00000000000000000040.checkpoint.parquet    everything that stands at version 40
               00000000000000000041.json                  what version 41 changed: an action a line

Whoever makes a version's file first has committed it. Facts: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import DeltaTable as ForeignTable

from cdcflow.errors import HistoryLost
from cdcflow.warehouse.durable import make_folder, sync_file, sync_folder
from cdcflow.warehouse.failures import reading
from cdcflow.warehouse.formats.delta import MAPPING, checkpoint_every
from cdcflow.warehouse.formats.delta_commits import actions_of, identity, lines_of, set_aside, torn_since
from cdcflow.warehouse.port import HandOver

FEATURES = frozenset({"deletionVectors", "columnMapping", "invariants", "appendOnly", "timestampNtz", "typeWidening"})
"""Table features that are understood here."""

PROTOCOLS = ((3, 7), (1, 2), (1, 7), (2, 5), (2, 7))
"""Versions for readers and writers: with features by name; of a plain table; of one that Spark gave column mapping. A
writer's 7 has its features by name, below it may have a change feed, constraints and generated columns."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_ANY_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.")
"""Of any kind: what is older than one of them is removed in time."""
_VERSION = re.compile(r"(\d{20})\.json")

_log = structlog.get_logger()

Action = Mapping[str, Any]


class LogBegun(HandOver):
    """A log begins with what is not read here: with a checkpoint of several files, or behind the version asked for."""


class Conflict(Exception):
    """Somebody else has committed the version that was to be next."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a table's rows. `path` and `told`, JSON of what is known of its columns, are as the log has them,
    `vector` is what says which of its rows are deleted."""

    path: str
    size: int
    told: str = "{}"
    vector: Mapping[str, Any] | None = None
    modified_ms: int = 0

    @classmethod
    def of(cls, add: Mapping[str, Any]) -> File:
        return cls(add["path"], add["size"], add.get("stats") or "{}", _vector(add), add["modificationTime"])

    @property
    def stats(self) -> Mapping[str, Any]:
        """What is known of its columns."""
        found: Mapping[str, Any] = json.loads(self.told)
        return found

    @property
    def key(self) -> tuple[str, str]:
        """What a `remove` must name as well."""
        if self.vector is None:
            return self.path, ""
        return self.path, "{storageType}{pathOrInlineDv}@{offset}".format(**{"offset": None, **self.vector})

    def removed(self, now_ms: int) -> Action:
        """The action that takes it out of the table."""
        more = {} if self.vector is None else {"deletionVector": self.vector}
        return {
            "remove": {
                "path": self.path,
                "deletionTimestamp": now_ms,
                "dataChange": True,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": self.size,
                **more,
            }
        }

    def added(self) -> Action:
        """The action that puts it into the table."""
        more = {} if self.vector is None else {"deletionVector": self.vector}
        return {
            "add": {
                "path": self.path,
                "partitionValues": {},
                "size": self.size,
                "modificationTime": self.modified_ms,
                "dataChange": True,
                "stats": self.told,
                **more,
            }
        }

    def marked(self, rows: int, vector: Mapping[str, Any]) -> File:
        """The same file, of whose `rows` rows these are gone. Its bounds stay, though no row may have them any more."""
        # Numbers stay as they are written: read and written again a decimal could be another one.
        told = {**_members(self.told), "numRecords": str(rows), "tightBounds": "false"}
        listed = ",".join(f"{json.dumps(name)}:{value}" for name, value in told.items())
        return replace(self, told=f"{{{listed}}}", vector=vector)


class DeltaLog:
    """A table's log, as of the latest `update`. `version` is -1 where there is no table. `commit_id` is that of the
    version's commit ("": its file was cleaned up after a checkpoint)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = folder / "_delta_log"
        self._forget()

    def _forget(self) -> None:
        self.version = -1
        self.commit_id = ""
        self.protocol: Action = {}
        self.metadata: Action = {}
        self.transactions: dict[str, int] = {}
        self._checkpoint: Path | None = None
        self._since: list[Action] = []
        self._files: dict[tuple[str, str], File] | None = None

    def update(self, until: int | None = None) -> int:
        """Read what came since, up to a version (None: the newest). Returns the newest version that was read.

        Raises:
            HandOver: the log begins with what is not read here.
            HistoryLost: a version's file is missing, or torn, and later ones were committed after it.
        """
        if not self._place.exists():  # nor is it there when somebody moved its folder away
            self._forget()
        elif self.version < 0:
            self._begin(until)
        while self.version != until and (found := self._read(self.version + 1)) is not None:
            actions, self.commit_id = found
            self._apply(actions)
        return self.version

    def actions(self, version: int) -> list[Action] | None:
        """What a version changed; None if its commit is missing, or torn.

        Raises:
            HistoryLost: it is torn, and later versions were committed after it.
        """
        found = self._read(version)
        return None if found is None else found[0]

    def commit_id_of(self, version: int) -> str:
        """What identifies a version's commit; "": it is missing, or torn."""
        if version == self.version and self.commit_id:
            return self.commit_id
        found = self._read(version)
        return "" if found is None else found[1]

    def drop_torn(self, published: int | None = None) -> None:
        """Set commits aside that a power cut left torn (see `torn_since`). For a merge, which has the lease."""
        if torn := torn_since(self._place, published):
            set_aside(self._place, torn)
            self._forget()

    def _read(self, version: int) -> tuple[list[Action], str] | None:
        """A version's actions and the identity of its commit."""
        try:
            content = self._at(version).read_bytes()
        except FileNotFoundError:
            return None
        found = actions_of(content)
        if found is not None:
            return list(found), identity(lines_of(content.decode()))
        if self._at(version + 1).exists():
            raise _built_on_torn("/".join(self._folder.parts[-2:]), version)
        return None

    def at_time_ms(self, at_ms: float) -> int:
        """The version that was the newest at a time, in milliseconds since 1970; the oldest that is known, if none was
        there yet."""
        for version in range(self.version, -1, -1):
            found = self.actions(version)
            if found is None:
                return min(version + 1, self.version)
            if any(a["commitInfo"].get("timestamp", at_ms + 1) <= at_ms for a in found if "commitInfo" in a):
                return version
        return 0

    def files(self) -> list[File]:
        """The files of the newest version."""
        if self._files is None:
            self._files = {}
            if self._checkpoint is not None:
                _take(self._files, ({"add": add} for add in _standing(self._checkpoint, "add")))
            _take(self._files, self._since)
        return list(self._files.values())

    @property
    def is_short(self) -> bool:
        """Its files are known without a look at a checkpoint."""
        return self._checkpoint is None

    def commit(self, actions: Sequence[Action]) -> None:
        """Make the next version, durably.

        Raises:
            Conflict: somebody else has made it.
        """
        version = self.version + 1
        text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        make_folder(self._place)
        made = self._place / f".{uuid4()}.tmp"
        try:
            with made.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(made, self._at(version))
            except FileExistsError as error:
                raise Conflict(f"version {version} of {self._folder.name} is there already") from error
        finally:
            made.unlink()
        sync_folder(self._place)
        self._apply(actions)
        self.commit_id = identity(lines_of(text))
        if version and version % checkpoint_every(self.metadata.get("configuration") or {}) == 0:
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        try:
            table = ForeignTable(self._folder)
            table.create_checkpoint()
            # Before what it stands for goes.
            sync_file(self._checkpoint_at(self.version))
            sync_folder(self._place)
            table.cleanup_metadata()
        except Exception as error:  # noqa: BLE001  whatever it is: the versions themselves are there
            _log.info("no checkpoint of a Delta table", table=self._folder.name, error=type(error).__name__)

    def _at(self, version: int) -> Path:
        return self._place / f"{version:020d}.json"

    def _checkpoint_at(self, version: int) -> Path:
        return self._place / f"{version:020d}.checkpoint.parquet"

    def _begin(self, until: int | None) -> None:
        names = os.listdir(self._place)
        last = sys.maxsize if until is None else until
        checkpoints = [n for name in names if (found := _CHECKPOINT.fullmatch(name)) and (n := int(found[1])) <= last]
        versions = [n for name in names if (found := _VERSION.fullmatch(name)) and (n := int(found[1])) <= last]
        # One that is torn is missing, too.
        begin = next((n for n in sorted(checkpoints, reverse=True) if _is_readable(self._checkpoint_at(n))), -1)
        newer = sorted(v for v in versions if v > begin and (until is None or v <= until))
        missing = next((n for n, v in enumerate(newer, begin + 1) if n != v), None)
        if missing is not None:
            if any(int(found[1]) >= missing for name in names if (found := _ANY_CHECKPOINT.match(name))):
                raise LogBegun("its log begins with a checkpoint that only Spark reads")
            raise _has_gap("/".join(self._folder.parts[-2:]), missing)
        if begin < 0:
            return
        self._checkpoint = self._checkpoint_at(begin)
        if _standing(self._checkpoint, "sidecar"):
            raise HandOver("its log has a checkpoint that only Spark reads")
        self.version = begin
        self.commit_id = self.commit_id_of(begin)
        for kind in ("protocol", "metaData", "txn"):
            for action in _standing(self._checkpoint, kind):
                self._note({kind: action})

    def _apply(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._note(action)
        files = [action for action in actions if "add" in action or "remove" in action]
        if self._files is None:
            self._since += files
        else:
            _take(self._files, files)
        self.version += 1

    def _note(self, action: Action) -> None:
        if "txn" in action:
            self.transactions[action["txn"]["appId"]] = action["txn"]["version"]
        self.protocol = action.get("protocol", self.protocol)
        self.metadata = action.get("metaData", self.metadata)


def _has_gap(table: str, version: int) -> HistoryLost:
    return HistoryLost(
        f"the commit of version {version} of table {table} is missing (_delta_log/{version:020d}.json), and there are"
        " later versions: its rows are not known",
        remedy="put that file back from a copy; or move the table's folder away, run `cdcflow backfill` for the table,"
        " then `cdcflow merge`",
        runbook="table-torn",
    )


def _built_on_torn(table: str, version: int) -> HistoryLost:
    return HistoryLost(
        f"the commit of version {version} of table {table} is torn, as a power cut leaves a file, and later versions"
        " were committed after it: they miss its rows",
        remedy="move the table's folder away, run `cdcflow backfill` for the table, then `cdcflow merge`",
        runbook="table-torn",
    )


def _take(files: dict[tuple[str, str], File], actions: Iterable[Action]) -> None:
    for action in actions:
        if "add" in action:
            file = File.of(action["add"])
            files[file.key] = file
        elif "remove" in action:
            gone = action["remove"]
            files.pop(File(gone["path"], 0, vector=_vector(gone)).key, None)


def _members(text: str) -> dict[str, str]:
    """The members of a JSON object, each value as it is written."""
    read = json.JSONDecoder().raw_decode
    found = {}
    at = _next(text, 0) + 1
    while text[at := _next(text, at)] != "}":
        name, at = read(text, at)
        begin = _next(text, at)
        _, at = read(text, begin)
        found[name] = text[begin:at]
    return found


def _next(text: str, at: int) -> int:
    """Where in a JSON object's text the next of its parts begins."""
    while text[at] in " \t\r\n,:":
        at += 1
    return at


def _vector(of: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A file's deletion vector. In a checkpoint one that is not there may be one of NULLs."""
    found: Mapping[str, Any] | None = of.get("deletionVector")
    return found if found and found.get("storageType") else None


def _is_readable(checkpoint: Path) -> bool:
    try:
        pq.read_schema(checkpoint)
    except pa.ArrowInvalid:
        return False
    return True


def _standing(checkpoint: Path, kind: str) -> list[dict[str, Any]]:
    """The actions of one kind in a checkpoint."""
    with reading(checkpoint):
        if kind not in pq.read_schema(checkpoint).names:
            return []
        found = pq.read_table(checkpoint, columns=[kind], partitioning=None).column(0).combine_chunks()
    listed: list[dict[str, Any]] = found.filter(found.is_valid()).to_pylist(maps_as_pydicts="strict")
    return listed


def local_path(folder: Path, file: File) -> Path:
    """Where a file of a table lies.

    Raises:
        HandOver: outside of the table's folder, as those of a clone.
    """
    parts = urlsplit(file.path)
    if parts.scheme or parts.path.startswith("/"):
        raise HandOver("it has files outside of its folder")
    return folder / unquote(parts.path)


def unread(protocol: Action, metadata: Action) -> str | None:
    """What a table asks of its writers that is not done here; None: nothing."""
    # In a checkpoint what is not there may be a NULL.
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    if (protocol["minReaderVersion"], protocol["minWriterVersion"]) not in PROTOCOLS:
        return "it follows an older protocol of Delta"
    if strange := sorted(features - FEATURES):
        return f"it has features of Delta that only Spark knows: {', '.join(strange)}"
    if metadata.get("partitionColumns"):
        return "it is partitioned"
    settings = metadata.get("configuration") or {}
    if settings.get(MAPPING, "none") not in ("name", "none") or settings.get("delta.appendOnly") == "true":
        return "its properties are not those of a current-state table"
    if settings.get("delta.enableChangeDataFeed") == "true" or any(
        s.startswith("delta.constraints.") for s in settings
    ):
        return "it has a change feed or constraints"
    fields = json.loads(metadata["schemaString"])["fields"]
    computed = ("delta.invariants", "delta.generationExpression")
    if any(key.startswith(computed) for key in itertools.chain(*(f["metadata"] for f in fields))):
        return "it has invariants or generated columns"
    return None

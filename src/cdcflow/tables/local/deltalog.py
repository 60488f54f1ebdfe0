"""The log of a Delta table: read its current state, and commit one more version.

    _delta_log/00000000000000000040.checkpoint.parquet    the whole state at version 40
               00000000000000000041.json                  the changes of version 41: one action per line

The writer that creates a version's file first has committed it. Source:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from cdcflow.errors import HistoryLost
from cdcflow.tables.folders import WarehouseFolder
from cdcflow.tables.formats.delta import MAPPING, checkpoint_every
from cdcflow.tables.formats.delta_commits import actions_of, identity, lines_of, set_aside, torn_since
from cdcflow.tables.job.failures import reading
from cdcflow.tables.local.checkpoints import (
    LAST,
    Removals,
    may_be_since,
    name_of_checkpoint,
    remove_expired,
    write_checkpoint,
)
from cdcflow.tables.port import HandOver

FEATURES = frozenset({"deletionVectors", "columnMapping", "invariants", "appendOnly", "timestampNtz", "typeWidening"})
"""The table features that this reader and writer supports."""

PROTOCOLS = ((3, 7), (1, 2), (1, 7), (2, 5), (2, 7))
"""The supported pairs of a reader version and a writer version: tables with named features, plain tables, and tables
to which Spark gave column mapping. Writer version 7 lists its features; a lower version may have a change feed,
constraints and generated columns."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_ANY_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.")
"""The names of checkpoints of any kind. Commits before a checkpoint are removed over time."""
_VERSION = re.compile(r"(\d{20})\.json")

_log = structlog.get_logger()

Action = Mapping[str, Any]


class LogBegun(HandOver):
    """The error for a log that begins with something that this reader does not support: a checkpoint of several files,
    or one after the requested version."""


class Conflict(Exception):
    """The error when another writer has committed the version that was to be committed next."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a table's rows. `path` and `told` (its column statistics as JSON) are as in the log; `vector` describes
    its deletion vector."""

    path: str
    size: int
    told: str = "{}"
    vector: Mapping[str, Any] | None = None
    modified_ms: int = 0

    @classmethod
    def of(cls, add: Mapping[str, Any]) -> File:
        return cls(add["path"], add["size"], add.get("stats") or "{}", _vector(add), add["modificationTime"])

    @classmethod
    def of_remove(cls, remove: Mapping[str, Any]) -> File:
        """Return the file that a `remove` refers to."""
        return cls(remove["path"], remove.get("size") or 0, vector=_vector(remove))

    @property
    def stats(self) -> Mapping[str, Any]:
        """The file's column statistics."""
        return _read_stats(self.told)

    @property
    def key(self) -> tuple[str, str]:
        """The key by which a `remove` refers to the file."""
        if self.vector is None:
            return self.path, ""
        return self.path, "{storageType}{pathOrInlineDv}@{offset}".format(**{"offset": None, **self.vector})

    def remove_action(self, now_ms: int) -> Action:
        """Return the action that removes the file from the table."""
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

    def add_action(self) -> Action:
        """Return the action that adds the file to the table."""
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

    def with_deleted_rows(self, rows: int, vector: Mapping[str, Any]) -> File:
        """Return the file with the rows of this vector deleted. `rows`: the number of its rows, including deleted ones.
        Its bounds stay, although perhaps no remaining row has those values."""
        # Numbers keep their text: a decimal could change when it is parsed and written again.
        told = {**_members(self.told), "numRecords": str(rows), "tightBounds": "false"}
        listed = ",".join(f"{json.dumps(name)}:{value}" for name, value in told.items())
        return replace(self, told=f"{{{listed}}}", vector=vector)


class DeltaLog:
    """A table's log, as of the latest `update`. `version` is -1 if there is no table. `commit_id` identifies the
    version's commit ("" if its file was cleaned up after a checkpoint)."""

    def __init__(self, folder: WarehouseFolder | Path) -> None:
        self._folder = WarehouseFolder.of(folder)
        self._place = self._folder.folder("_delta_log")
        self._lock = threading.RLock()
        self.on_checkpoint: Callable[[DeltaLog], None] | None = None
        """A function that is called when a checkpoint is due. `None`: the checkpoint is written at once."""
        self._forget()

    def _forget(self) -> None:
        self.version = -1
        self.commit_id = ""
        self.protocol: Action = {}
        self.metadata: Action = {}
        self.transactions: dict[str, int] = {}
        self._checkpoint: str | None = None
        self._held: tuple[str, bytes] | None = None
        self._removed: list[tuple[int, Action]] = []
        self._is_proven = True
        self._is_whole = False
        self._latest: list[Action] | None = None
        self._since: list[Action] = []
        self._files: dict[tuple[str, str], File] | None = None

    @property
    def location(self) -> str:
        """The path or URL of the table's folder."""
        return self._folder.location

    def update(self, until: int | None = None) -> int:
        """Read the new versions, up to a version (`None`: the latest). Return the last version that was read.

        Raises:
            HandOver: the log begins with something that this reader does not support.
            HistoryLost: a version's file is missing or torn, and later ones were committed after it.
        """
        with self._lock:
            newer = self._check() if self.version >= 0 else []
            if self.version < 0:
                newer = self._begin(until)
            while self.version != until and (found := self._read(self.version + 1, newer)) is not None:
                self._latest, self.commit_id = found
                self._apply(self._latest)
                newer = newer[1:]
            return self.version

    def copy(self) -> DeltaLog:
        """Return a log with the same state for another reader. Its first `update` checks whether the table was moved
        away or replaced since."""
        found = DeltaLog(self._folder)
        with self._lock:
            found.version, found.commit_id, found._latest = self.version, self.commit_id, self._latest
            found.protocol, found.metadata = self.protocol, self.metadata
            found.transactions = dict(self.transactions)
            found._checkpoint, found._since = self._checkpoint, list(self._since)
            found._removed = list(self._removed)
            found._files = None if self._files is None else dict(self._files)
        found._is_proven, found._is_whole = False, self._is_whole
        found.on_checkpoint = self.on_checkpoint
        return found

    def _check(self) -> list[bytes | None]:
        """Forget everything if the version that was read last is no longer that of the table, because an operator may
        have moved its folder away. Return the content of the next version's file, if it was read along with the check.
        """
        if self._is_proven and self._place.path is not None:
            if not self._place.exists():
                self._forget()
            return []
        asked = range(self.version + (1 if self._is_proven else 0), self.version + 2)
        *here, newer = self._place.read_each([_commit_name(version) for version in asked])
        if here and (here[0] is None or not self.commit_id or _identity_of(here[0]) != self.commit_id):
            self._forget()
        self._is_proven = True
        return [newer] if self.version >= 0 else []

    def actions(self, version: int) -> list[Action] | None:
        """Return the actions of a version; `None` if its commit is missing or torn.

        Raises:
            HistoryLost: it is torn, and later versions were committed after it.
        """
        found = self._read(version)
        return None if found is None else found[0]

    def commit_id_of(self, version: int) -> str:
        """Return the identity of a version's commit; "" if it is missing or torn."""
        if version == self.version and self.commit_id:
            return self.commit_id
        found = self._read(version)
        return "" if found is None else found[1]

    def drop_torn(self, published: int | None = None) -> None:
        """Set aside commits that a power cut left torn (see `torn_since`). For a merge, which holds the lease.

        A power cut ends this process, too: what it has read or committed since the first search stays whole. So it
        searches again only if there is a commit of another process, and need not list the log's folder otherwise.
        """
        place = self._place.path
        if place is None or (self._is_whole and not (place / _commit_name(self.version + 1)).exists()):
            return
        if torn := torn_since(place, published):
            set_aside(place, torn)
            self._forget()
        else:
            self._is_whole = True

    def _read(self, version: int, known: Sequence[bytes | None] = ()) -> tuple[list[Action], str] | None:
        """Return a version's actions and the identity of its commit. `known`: the content of its file, if it was read
        already."""
        if version == self.version and self._latest is not None and self.commit_id:
            return self._latest, self.commit_id
        content = known[0] if known else self._place.read_each([_commit_name(version)])[0]
        if content is None:
            return None
        found = actions_of(content)
        if found is not None:
            return list(found), identity(lines_of(content.decode()))
        if self._place.read_each([_commit_name(version + 1)]) != [None]:
            raise _built_on_torn(self._folder.table_name, version)
        return None

    def at_time_ms(self, at_ms: float) -> int:
        """Return the version that was the latest at a time, in milliseconds since 1970; the oldest known one, if none
        existed yet."""
        for version in range(self.version, -1, -1):
            found = self.actions(version)
            if found is None:
                return min(version + 1, self.version)
            if any(a["commitInfo"].get("timestamp", at_ms + 1) <= at_ms for a in found if "commitInfo" in a):
                return version
        return 0

    def about_time_ms(self, at_ms: float) -> int:
        """Return the version that `at_time_ms` would return, or an older one, reading few commits. Each commit that is
        read halves the rest of the log. The clocks of writers may differ, so a version may be dated before an older
        one."""
        oldest, newest = 0, self.version
        while oldest < newest:
            middle = (oldest + newest + 1) // 2
            found = self.actions(middle)
            if found is None:
                oldest = middle + 1
            elif (committed := _committed_ms(found)) is not None and committed <= at_ms:
                oldest = middle
            else:
                newest = middle - 1
        return oldest

    def files(self) -> list[File]:
        """Return the files of the latest version."""
        with self._lock:
            if self._files is None:
                found: dict[tuple[str, str], File] = {}
                if self._checkpoint is not None:
                    _take(found, ({"add": add} for add in self._in_checkpoint(self._checkpoint, "add")))
                _take(found, self._since)
                self._files, self._since, self._held = found, [], None
            return list(self._files.values())

    @property
    def is_short(self) -> bool:
        """Whether the table's files are known without reading a checkpoint."""
        return self._checkpoint is None or self._files is not None

    def commit(self, actions: Sequence[Action]) -> None:
        """Commit the next version, durably.

        Raises:
            Conflict: another writer has committed it.
        """
        version = self.version + 1
        text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        try:
            self._place.create(_commit_name(version), text.encode())
        except FileExistsError as error:
            raise Conflict(f"version {version} of {self._folder.table_name} already exists") from error
        with self._lock:
            self._apply(actions)
            self._latest, self.commit_id = list(actions), identity(lines_of(text))
        if version and version % checkpoint_every(self.metadata.get("configuration") or {}) == 0:
            if self.on_checkpoint is None:
                self.write_checkpoint()
            else:
                self.on_checkpoint(self)

    def write_later(self) -> int:
        """Write the checkpoint of this version, which may no longer be the latest. Return the version; -1 if the
        checkpoint was not written, for example because the table was moved away."""
        version = self.version
        if self.update(version) != version:
            return -1
        self.write_checkpoint()
        return version if self._checkpoint == name_of_checkpoint(version) else -1

    def begin_at(self, version: int) -> None:
        """Record that a checkpoint of this version was written, so that nothing before it need be remembered."""
        with self._lock:
            known = -1 if self._checkpoint is None else _version_of(self._checkpoint)
            if known < version <= self.version and self._files is not None:
                self._checkpoint = name_of_checkpoint(version)
                self._removed = [(at, action) for at, action in self._removed if at > version]

    def write_checkpoint(self) -> None:
        """Write the checkpoint of this version. If that fails, the next checkpoint that is due replaces it."""
        try:
            self._write_state(time.time())
        except Exception as error:  # noqa: BLE001  whatever the error is: the commits themselves exist
            _log.info("no checkpoint of a Delta table", table=self._folder.table_name, error=type(error).__name__)

    def _write_state(self, now: float) -> None:
        try:
            known, before = self._removals()
        except FileNotFoundError:  # another writer has removed it after writing later ones
            self._begin_later()
            known, before = self._removals()
        known = known or Removals(-1 if self._checkpoint is None else _version_of(self._checkpoint))
        with self._lock:
            files = self.files()
            state: list[Action] = [{"protocol": self.protocol}, {"metaData": self.metadata}]
            state += [{"txn": {"appId": app, "version": number}} for app, number in self.transactions.items()]
            state += [{"add": {**file.add_action()["add"], "dataChange": False}} for file in files]
            removed = [action for _, action in self._removed]
            write_checkpoint(self._place, self.version, state, removed, before, known, int(now * 1000))
            self._checkpoint, self._removed, self._held = name_of_checkpoint(self.version), [], None
        remove_expired(self._place, self.metadata, now)

    def _removals(self) -> tuple[Removals | None, pa.Array | None]:
        """Return which of the checkpoint's removed files are complete, and its `remove` actions. Both are `None` if
        there is no checkpoint, and the first if another program has written it."""
        if self._checkpoint is None:
            return None, None
        return self._statement_in(self._checkpoint), self._column(self._checkpoint, "remove")

    def _statement_in(self, checkpoint: str) -> Removals | None:
        with reading(self._place.place_of(checkpoint)), self._open(checkpoint) as file:
            return Removals.of(file)

    def removed_since(self, version: int) -> list[File] | None:
        """Return the files that commits after a version have removed, and perhaps others that were removed earlier;
        `None` if a commit is missing. Few commits are read if a checkpoint by cdcflow lists the files."""
        with self._lock:
            found = [File.of_remove(action) for removed_by, action in self._removed if removed_by > version]
            checkpoint = self._checkpoint
        if checkpoint is None or (begin := _version_of(checkpoint)) <= version:
            return found
        try:
            known, committed = self._statement_in(checkpoint), _committed_ms(self.actions(version + 1))
            if known is not None and committed is not None and known.has_since(version, committed):
                listed = self._in_checkpoint(checkpoint, "remove")
                return [*found, *(File.of_remove(action) for action in listed if may_be_since(committed, action))]
        except FileNotFoundError:  # another writer has removed it after writing later ones
            pass
        for each in range(version + 1, begin + 1):
            if (actions := self.actions(each)) is None:
                return None
            found += [File.of_remove(action["remove"]) for action in actions if "remove" in action]
        return found

    def _begin_later(self) -> None:
        """Read the state of the same version again, starting at the latest checkpoint that the table has now."""
        found = DeltaLog(self._folder)
        if found.update(self.version) != self.version:
            raise HandOver("its log no longer contains the version that was committed")
        with self._lock:
            self._checkpoint, self._removed = found._checkpoint, found._removed
            self._files, self._since, self._held = found._files, found._since, found._held

    def _begin(self, until: int | None) -> list[bytes | None]:
        """Read the state at the last checkpoint that is not after version `until`. Return the contents of the later
        versions' files, as far as they were read along with it."""
        if (hint := self._hint()) > 0 and (until is None or hint <= until):
            names = self._place.names(after=f"{hint:020d}")
            if name_of_checkpoint(hint) in names and self._is_readable(name_of_checkpoint(hint)):
                return self._begin_with(names, until)
        return self._begin_with(self._place.names(), until)

    def _hint(self) -> int:
        """Return the version of the last checkpoint as its writer recorded it; 0 if that is unknown. With it, a store
        need not list the files before that version."""
        if self._place.path is not None:
            return 0
        (content,) = self._place.read_each([LAST])
        try:
            return int(json.loads(content or b"")["version"])
        except (ValueError, KeyError, TypeError):
            return 0

    def _begin_with(self, names: Sequence[str], until: int | None) -> list[bytes | None]:
        """Do the work of `_begin`. `names`: the names in the log's folder, at least those since the last checkpoint."""
        last = sys.maxsize if until is None else until
        checkpoints = [n for name in names if (found := _CHECKPOINT.fullmatch(name)) and (n := int(found[1])) <= last]
        versions = [n for name in names if (found := _VERSION.fullmatch(name)) and (n := int(found[1])) <= last]
        # A torn checkpoint counts as missing.
        begin = next((n for n in sorted(checkpoints, reverse=True) if self._is_readable(name_of_checkpoint(n))), -1)
        newer = sorted(v for v in versions if v > begin and (until is None or v <= until))
        missing = next((n for n, v in enumerate(newer, begin + 1) if n != v), None)
        if missing is not None and self._place.path is None and _commit_name(missing) not in names:
            # A store may list an object later than it has it.
            with_missing = self._place.read_each([_commit_name(missing)])
            if with_missing != [None]:
                return self._begin_with([*names, _commit_name(missing)], until)
        if missing is not None:
            if any(int(found[1]) >= missing for name in names if (found := _ANY_CHECKPOINT.match(name))):
                raise LogBegun("its log begins with a checkpoint that only Spark reads")
            raise _has_gap(self._folder.table_name, missing)
        if begin < 0:
            return self._read_ahead(newer)
        self._checkpoint = name_of_checkpoint(begin)
        if self._in_checkpoint(self._checkpoint, "sidecar"):
            raise HandOver("its log has a checkpoint that only Spark reads")
        self.version = begin
        self.commit_id = self.commit_id_of(begin)
        for kind in ("protocol", "metaData", "txn"):
            for action in self._in_checkpoint(self._checkpoint, kind):
                self._note({kind: action})
        return self._read_ahead(newer)

    def _read_ahead(self, versions: Sequence[int]) -> list[bytes | None]:
        """Return the contents of the files of these versions if reading several at a time is faster here; otherwise
        nothing."""
        if self._place.path is not None:
            return []
        return self._place.read_each([_commit_name(version) for version in versions])

    def _is_readable(self, checkpoint: str) -> bool:
        try:
            with self._open(checkpoint):
                return True
        except pa.ArrowInvalid:
            return False

    def _in_checkpoint(self, checkpoint: str, kind: str) -> list[dict[str, Any]]:
        """Return the actions of one kind in a checkpoint."""
        found = self._column(checkpoint, kind)
        listed: list[dict[str, Any]] = [] if found is None else found.to_pylist(maps_as_pydicts="strict")
        return listed

    def _column(self, checkpoint: str, kind: str) -> pa.Array | None:
        """Return the actions of one kind in a checkpoint, as structs; `None` if it has no such column."""
        with reading(self._place.place_of(checkpoint)), self._open(checkpoint) as file:
            if kind not in file.schema_arrow.names:
                return None
            found = file.read(columns=[kind]).column(0).combine_chunks()
        return found.filter(found.is_valid())

    def _open(self, checkpoint: str) -> pq.ParquetFile:
        if self._place.path is not None:
            return pq.ParquetFile(self._place.path / checkpoint)
        if self._held is None or self._held[0] != checkpoint:
            self._held = checkpoint, self._place.read(checkpoint)
        return pq.ParquetFile(pa.BufferReader(self._held[1]))

    def _apply(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._note(action)
        files = [action for action in actions if "add" in action or "remove" in action]
        self._removed += [(self.version + 1, action["remove"]) for action in files if "remove" in action]
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
        remedy="restore that file from a copy; or move the table's folder away, run `cdcflow backfill` for the table,"
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
            files.pop(File.of_remove(action["remove"]).key, None)


@lru_cache(maxsize=4096)
def _read_stats(told: str) -> Mapping[str, Any]:
    """Read the statistics of a file, which each merge compares with its keys."""
    found: Mapping[str, Any] = json.loads(told)
    return found


def _members(text: str) -> dict[str, str]:
    """Return the members of a JSON object, each value as written."""
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
    """Return the index of the next token in a JSON object's text, from index `at` onward."""
    while text[at] in " \t\r\n,:":
        at += 1
    return at


def _vector(of: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a file's deletion vector. In a checkpoint a missing vector may be a struct of NULLs."""
    found: Mapping[str, Any] | None = of.get("deletionVector")
    return found if found and found.get("storageType") else None


def _committed_ms(actions: Sequence[Action] | None) -> float | None:
    """Return the time of a commit, in milliseconds since 1970, as its writer states it; `None` if that is unknown."""
    infos = (action["commitInfo"] for action in actions or () if "commitInfo" in action)
    return next((info["timestamp"] for info in infos if "timestamp" in info), None)


def _version_of(checkpoint: str) -> int:
    return int(checkpoint.partition(".")[0])


def _commit_name(version: int) -> str:
    return f"{version:020d}.json"


def _identity_of(content: bytes) -> str:
    return identity(lines_of(content.decode(errors="replace")))


def name_of(file: File) -> str:
    """Return the name of a file of a table in the table's folder.

    Raises:
        HandOver: it is outside of the table's folder, as in a clone.
    """
    parts = urlsplit(file.path)
    if parts.scheme or parts.path.startswith("/"):
        raise HandOver("it has files outside of its folder")
    return unquote(parts.path)


def unread(protocol: Action, metadata: Action) -> str | None:
    """Return why this writer cannot write a table; `None` if it can."""
    # In a checkpoint a missing value may be NULL.
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

"""The history of a log in Kafka: sealed segments in a folder, as in a file log, without a journal.

    topic ─▶ `Sealer`, wherever Spark runs it ─▶ segments/.….tmp ─▶ `History.put` ─▶ segments/…
             files, manifest, fsync               readers ignore it     chain compared, schemas.json, then the name

The process that adds to it holds its lock. A run that dies leaves directories without a final name, which the next run
removes; a directory with its name is whole and follows the previous segment. So a run is repeated from the end of the
named segments, and no change is sealed twice or skipped.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from cdcflow.errors import ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.log.disk.layer import OS_LAYER, FileLayer, remove_tree, storing, syncing, write_file
from cdcflow.log.disk.lease import Held, Lease
from cdcflow.log.disk.segment_folders import put_in_place, write_segment
from cdcflow.log.files.layout import Layout, LogFile
from cdcflow.log.files.segment_writer import seal
from cdcflow.log.format.journal import AttachedSpool
from cdcflow.log.format.records import Message
from cdcflow.log.format.rows import ShapeRows
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.format.segment import Segment, manifest_hash
from cdcflow.log.format.topic_tail import SEGMENT_BYTES_MAX, TailSplitter, Unsealed
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.model.table import table_from_json

TOPIC_END = "place.json"
"""The file, next to a segment's manifest, with the topic that the segment was sealed from and the topic offset after
its last cut."""


@dataclass(frozen=True, slots=True)
class Sealer:
    """Writes the part of a topic after the history's end into directories with temporary names, and yields those names.

    It can be sent to another process: it holds only values. `after` is the checkpoint that the history ends with (None
    if it is empty); `previous`, `previous_offset` and `xid_newest` are taken from the history's last segment. `prefix`
    begins the names of the files with rows.
    """

    segments: Path
    topic: str
    log_id: str
    after: Checkpoint | None
    previous: str
    previous_offset: int | None
    xid_newest: int | None
    bytes_max: int = SEGMENT_BYTES_MAX
    prefix: str = ""

    @classmethod
    def behind(
        cls, newest: Segment | None, manifest: str, segments: Path, topic: str, log_id: str, bytes_max: int
    ) -> Sealer:
        """Return a sealer that continues after a history's latest segment.

        `manifest` is the hash of that segment's manifest (`newest` None, `manifest` "": the history is empty).
        """
        return cls(
            segments,
            topic,
            log_id,
            None if newest is None else newest.last_checkpoint(),
            manifest,
            None if newest is None else newest.first_offset,
            None if newest is None else newest.xid_newest,
            bytes_max,
        )

    def __call__(self, messages: Iterable[Message]) -> Iterator[str]:
        """Write whole, durable segments, and yield the directory of each, in order. `messages` begin at the head of a
        topic range.

        Raises:
            InvariantViolated: something is missing, or it is another log.
            SinkUnavailable: no room.
        """
        tail = TailSplitter(messages, f"topic {self.topic}", self.log_id, self.after, self.bytes_max)
        chain = self.previous, self.previous_offset, self.xid_newest
        for unsealed in tail.segments():
            name = f".{uuid.uuid4().hex}.tmp"
            with storing(f"sealing a part of topic {self.topic} in {self.segments}"):
                segment, text = self._write(self.segments / name, unsealed, chain)
                said = json.dumps({"topic": self.topic, "place": tail.topic_offset}).encode()
                write_file(OS_LAYER, self.segments / name / TOPIC_END, said)
            yield name
            chain = manifest_hash(text), segment.first_offset, segment.xid_newest

    def _write(
        self, directory: Path, unsealed: Unsealed, chain: tuple[str, int | None, int | None]
    ) -> tuple[Segment, bytes]:
        previous, previous_offset, xid_newest = chain
        return write_segment(
            OS_LAYER,
            directory,
            lambda open_target: self._with_prefix(
                seal(
                    unsealed.records,
                    _no_spool,
                    lambda name: open_target(self.prefix + name),
                    log_id=self.log_id,
                    base=unsealed.base,
                    epoch=unsealed.epoch,
                    previous=previous,
                    previous_offset=previous_offset,
                    xid_newest=xid_newest,
                )
            ),
        )

    def _with_prefix(self, segment: Segment) -> Segment:
        return replace(segment, files=tuple(replace(file, path=self.prefix + file.path) for file in segment.files))


def _no_spool(attach: AttachedSpool) -> Iterator[ShapeRows]:
    raise InvariantViolated(f"sealing a topic: it names a spool ({attach.spool}), and a topic has none")


class LockedHistory:
    """A history opened for adding to it. A context manager: the lock is released at the end."""

    lease: Lease
    newest: Segment | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.lease.release()

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that the history ends with; None if it has no segment yet."""
        return None if self.newest is None else self.newest.last_checkpoint()

    @staticmethod
    def lock(layout: Layout, name: str) -> Lease:
        """Take the lock that excludes other processes of this machine.

        Raises:
            SinkUnavailable: another process has it.
        """
        try:
            return Lease(layout)
        except Held:
            raise SinkUnavailable(
                f"adding to the history {name}: another process is doing so",
                remedy="try again when it is done",
                runbook="busy",
            ) from None


class FolderHistory(LockedHistory):
    """A history opened for adding to it. A context manager: the lock is released at the end."""

    def __init__(self, layout: Layout, lease: Lease, layer: FileLayer = OS_LAYER) -> None:
        self.layout = layout
        self.lease = lease
        self._layer = layer
        self._shapes = SchemaHistory()
        if layout.schemas.exists():
            self._shapes = SchemaHistory.from_json(layout.schemas.read_bytes(), str(layout.schemas))
        self.newest: Segment | None = None
        self._manifest = ""
        offsets, unfinished = layout.listed_segments()
        for left in unfinished:
            remove_tree(layer, left)
        if offsets:
            self.newest, text = layout.manifest(*offsets[-1])
            self._manifest = manifest_hash(text)

    @classmethod
    def open(
        cls, path: Path, log_id: str, identity: SourceIdentity, first_offset: int, layer: FileLayer = OS_LAYER
    ) -> FolderHistory:
        """Open the history of a log for adding to it; if it does not exist, create it, beginning with `first_offset`.

        Raises:
            SinkUnavailable: another process is adding to it; or no room.
            ConfigurationError: it belongs to another log.
        """
        layout = Layout(path)
        with storing(f"creating the history {path}"):
            layout.segments.mkdir(parents=True, exist_ok=True)
        lease = cls.lock(layout, str(path))
        try:
            with storing(f"opening the history {path}"):
                _own(layout, log_id, identity, first_offset, layer)
                return cls(layout, lease, layer)
        except BaseException:
            lease.release()
            raise

    def sealer(self, topic: str, bytes_max: int = SEGMENT_BYTES_MAX) -> Sealer:
        """Return a sealer for the part of the topic after the history's end."""
        log_id = self.layout.log_file().log_id
        return Sealer.behind(self.newest, self._manifest, self.layout.segments.resolve(), topic, log_id, bytes_max)

    def origin(self) -> Mapping[str, Any]:
        """Return the topic that the history's last segment was sealed from, and the topic offset after the last cut; {}
        if unknown."""
        return {} if self.newest is None else topic_end_of(self.layout, self.newest)

    def put(self, directory: str, shapes: SchemaHistory | None = None) -> Segment:
        """Give a segment that a `Sealer` wrote its final name.

        It must be the next one. `shapes`: all that the log knows.

        Raises:
            InvariantViolated: it does not follow the existing segments.
            SinkUnavailable: no room.
        """
        folder = self.layout.segments / directory
        with storing(f"adding a segment to the history {self.layout.root}"):
            text = (folder / "segment.json").read_bytes()
            segment = Segment.from_json(text, str(folder / "segment.json"))
            check_follows(segment, self.layout.log_file(), self.newest, self._manifest, str(self.layout.root))
            learn(self._shapes, segment, shapes)
            # Shapes come before the first segment that needs them.
            write_file(self._layer, self.layout.schemas, self._shapes.to_json().encode())
            target = self.layout.segment(segment.first_offset, segment.last_offset)
            put_in_place(self._layer, self.layout, folder, target)
        self.newest, self._manifest = segment, manifest_hash(text)
        return segment


def check_follows(segment: Segment, log: LogFile, newest: Segment | None, manifest: str, name: str) -> None:
    """Check that a segment is the next one of a history (`name`), which ends with `newest`, whose hash is `manifest`.

    Raises:
        InvariantViolated: it is not.
    """
    expected = newest.last_offset + 1 if newest is not None else log.first_offset
    found = (segment.log_id, segment.first_offset, segment.previous)
    if found != (log.log_id, expected, manifest):
        raise InvariantViolated(
            f"adding a segment to the history {name}: offsets {segment.first_offset} to "
            f"{segment.last_offset} do not follow its last segment, which ends before offset {expected}"
        )
    if newest is not None and (
        segment.first_cut <= newest.last_cut or segment.first_transaction != newest.last_transaction + 1
    ):
        raise InvariantViolated(
            f"adding a segment to the history {name}: its cuts or transactions do not follow cut "
            f"{newest.last_cut} and transaction {newest.last_transaction}"
        )


def learn(known: SchemaHistory, segment: Segment, shapes: SchemaHistory | None) -> None:
    """Add the shapes of a segment's tables, and `shapes`, to those that are known."""
    for file in segment.files:
        if file.table is not None:
            known.learn(table_from_json(file.table), file.version)
    for table, number in shapes or ():
        known.learn(table, number)


def topic_end_of(layout: Layout, segment: Segment) -> Mapping[str, Any]:
    """Return the topic that a segment was sealed from, and the topic offset after its last cut; {} if unknown."""
    path = layout.segment(segment.first_offset, segment.last_offset) / TOPIC_END
    try:
        return dict(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return {}


def _own(layout: Layout, log_id: str, identity: SourceIdentity, first_offset: int, layer: FileLayer) -> None:
    if not layout.log_json.exists():
        created = datetime.now(UTC).isoformat(timespec="seconds")
        file = LogFile(log_id, identity, created, first_offset)
        write_file(layer, layout.log_json, file.to_json().encode())
        with syncing(layout.root.parent):
            layer.fsync_dir(layout.root.parent)
        return
    file = layout.log_file()
    if file.log_id != log_id:
        raise ConfigurationError(
            f"opening the history {layout.root}: it belongs to another log ({file.log_id}, the topic has {log_id})",
            remedy="set log.kafka.history to another folder, or move that one away",
            runbook="other-log",
        )
    if file.source != identity:  # the source is on another timeline now
        write_file(layer, layout.log_json, replace(file, source=identity).to_json().encode())

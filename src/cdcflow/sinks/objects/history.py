"""The history of a log in Kafka in a bucket: sealed segments as for a log in files, and a chain of links.

    topic ─▶ `StoreSealer`, on an executor ─▶ segments/<offsets>/<attempt>-<file>      readers ignore it
                                          └─ manifest ─▶ `StoredHistory.put`, on the driver
                chain/<first offset>.json  ─▶ place.json ─▶ segment.json
                only if it does not exist      from now on readers count the segment

A bucket has no lock, and two processes that seal at the same time may end their segments at different offsets, so the
names of the segments do not collide. The links do: a link's name contains only the offset with which a segment begins,
it holds the manifest, and it is written on condition that it does not exist. So each segment has only one successor,
whichever process writes it. The other process gets an error and adds nothing. A link is never removed.

A process that dies after the link has added the segment: the next one to open the history writes what is missing, all
of it from the link. A process that dies before the link leaves files that no manifest names. They are removed when a
segment with these offsets is added; until then they may belong to a process that is about to add its link.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cdcflow.errors import ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.log.disk.layer import storing
from cdcflow.log.disk.lease import Lease
from cdcflow.log.files.layout import Layout, LogFile, segment_bounds, segment_name
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.format.segment import Segment, manifest_hash
from cdcflow.log.format.topic_tail import SEGMENT_BYTES_MAX
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.history import TOPIC_END, LockedHistory, Sealer, check_follows, learn
from cdcflow.sinks.objects.remote_sealer import StoreSealer
from cdcflow.sinks.objects.upload import put_first, sizes
from cdcflow.stores.bucket import AlreadyThere, Bucket, StoredObject


class StoredHistory(LockedHistory):
    """A history opened for adding to it. A context manager: this machine's lock is released at the end.

    Implements `cdcflow.sinks.kafka.tier.OpenHistory`.
    """

    def __init__(self, layout: Layout, bucket: Bucket, lease: Lease, log: LogFile, next_offset: int) -> None:
        self.layout = layout
        self.lease = lease
        self.newest: Segment | None = None
        self._bucket = bucket
        self._log = log
        self._manifest = ""
        self._place: Mapping[str, Any] = {}
        self._schemas = b""
        self._shapes = SchemaHistory()
        try:
            self._schemas = bucket.get("schemas.json")
            self._shapes = SchemaHistory.from_json(self._schemas, f"{bucket.name}/schemas.json")
        except FileNotFoundError:
            pass
        self._find_newest(next_offset)
        self._finish_what_was_begun()

    @classmethod
    def open(
        cls,
        layout: Layout,
        bucket: Bucket,
        log_id: str,
        identity: SourceIdentity,
        first_offset: int,
        next_offset: int,
    ) -> StoredHistory:
        """Open the history of a log for adding to it; if it does not exist, create it, beginning with `first_offset`.

        `next_offset`: the log's; the history ends not far before it. `layout` reads the bucket; its local folder has
        the lock.

        Raises:
            SinkUnavailable: another process of this machine is adding to it; no room; or the store is unavailable.
            ConfigurationError: it is another log's; or the store refuses, or does not support conditional writes.
        """
        with storing(f"creating a folder for the history {bucket.name}"):
            layout.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        lease = cls.lock(layout, bucket.name)
        try:
            log = _own(bucket, log_id, identity, first_offset)
            return cls(layout, bucket, lease, log, next_offset)
        except BaseException:
            lease.release()
            raise

    def sealer(self, topic: str, bytes_max: int = SEGMENT_BYTES_MAX) -> StoreSealer:
        """Return a sealer that uploads the files of the part after the history's end. The sealer contains the store's
        current keys."""
        base = Sealer.behind(self.newest, self._manifest, self.layout.root, topic, self._log.log_id, bytes_max)
        return StoreSealer(base, self._bucket.name, self._bucket.address)

    def origin(self) -> Mapping[str, Any]:
        """Return the topic that the history's last segment was sealed from, and the topic offset after the last cut; {}
        if unknown."""
        return self._place

    def put(self, directory: str, shapes: SchemaHistory | None = None) -> Segment:
        """Add a segment whose files a `StoreSealer` uploaded; `directory` is the text that it yielded.

        It must be the next segment. `shapes`: all that the log knows.

        Raises:
            InvariantViolated: it does not follow the existing segments.
            SinkUnavailable: another process added one concurrently, or the store is unavailable.
        """
        segment, text, place = self._parse_entry(directory)
        there = self._objects_within(segment)
        wrong = [name for name, size in _files(segment, text).items() if name not in there or there[name].bytes != size]
        link, is_ours = _link(segment.first_offset), not wrong
        if is_ours:
            try:
                self._bucket.put_new(link, directory.encode())
            except AlreadyThere:
                # This request may have written it, if its first answer was lost.
                is_ours = self._bucket.get(link) == directory.encode()
        if not is_ours:
            raise self._not_added(segment, link, wrong)
        self._finish(segment, text, place, shapes, there)
        return segment

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _not_added(self, segment: Segment, link: str, wrong: Sequence[str]) -> SinkUnavailable:
        attempted = f"adding a segment to the history {self._bucket.name}"
        try:
            self._bucket.get(link)
        except FileNotFoundError:
            text = f"{attempted}: segments/{wrong[0]} was uploaded, but the store does not have it as uploaded"
            return SinkUnavailable(text, remedy="merge again", runbook="store-unreachable")
        return SinkUnavailable(
            f"{attempted}: another process has added one with offset {segment.first_offset} in the meantime",
            remedy="nothing was added twice; merge again",
            runbook="busy",
        )

    def _find_newest(self, next_offset: int) -> None:
        found = self.layout.segments_behind(next_offset)
        if found:
            name = f"segments/{segment_name(found[-1])}"
            # Not this machine's copy: the next segment depends on the bucket's bytes.
            text = self._bucket.get(f"{name}/segment.json")
            self.newest, self._manifest = Segment.from_json(text, f"{self._bucket.name}/{name}"), manifest_hash(text)
            try:
                self._place = json.loads(self._bucket.get(f"{name}/{TOPIC_END}"))
            except FileNotFoundError:
                self._place = {}

    def _finish_what_was_begun(self) -> None:
        while True:
            try:
                said = self._bucket.get(_link(self._next))
            except FileNotFoundError:
                return
            segment, text, place = self._parse_entry(said.decode())
            self._finish(segment, text, place, None, self._objects_within(segment))

    @property
    def _next(self) -> int:
        return self._log.first_offset if self.newest is None else self.newest.last_offset + 1

    def _parse_entry(self, said: str) -> tuple[Segment, bytes, Mapping[str, Any]]:
        name = self._bucket.name
        try:
            value = json.loads(said)
            text, place = str(value["segment"]).encode(), dict(value["place"])
            segment = Segment.from_json(text, f"{name}/{_link(self._next)}")
        except (ValueError, KeyError, TypeError):
            raise InvariantViolated(
                f"reading {name}/{_link(self._next)}: cdcflow did not write it", runbook="log-damaged"
            ) from None
        check_follows(segment, self._log, self.newest, self._manifest, name)
        return segment, text, place

    def _finish(
        self,
        segment: Segment,
        text: bytes,
        place: Mapping[str, Any],
        shapes: SchemaHistory | None,
        there: Mapping[str, StoredObject],
    ) -> None:
        """Do everything that follows the link, which made the segment the next one. May be done twice, and by two
        processes."""
        learn(self._shapes, segment, shapes)
        schemas = self._shapes.to_json().encode()
        if schemas != self._schemas:
            # If two processes do this, the older one may be the last. The next one writes all shapes of the log again.
            self._bucket.put("schemas.json", schemas)
            self._schemas = schemas
        folder = segment_name((segment.first_offset, segment.last_offset))
        known = {*_files(segment, text), f"{folder}/{TOPIC_END}", f"{folder}/segment.json"}
        counting = {name.partition("/")[0] for name in there if name.endswith("/segment.json")}
        left = [name for name in there if name not in known and name.partition("/")[0] not in counting - {folder}]
        self._bucket.delete([f"segments/{name}" for name in left])
        self._put_same(f"segments/{folder}/{TOPIC_END}", json.dumps(place).encode())
        self._put_same(f"segments/{folder}/segment.json", text)
        self.newest, self._manifest, self._place = segment, manifest_hash(text), place

    def _put_same(self, name: str, content: bytes) -> None:
        try:
            self._bucket.put_new(name, content)
        except AlreadyThere:
            if self._bucket.get(name) != content:
                raise InvariantViolated(
                    f"writing {self._bucket.name}/{name}: it exists already, with other content: something else "
                    f"writes there",
                    remedy="set log.kafka.history to another prefix, and another warehouse",
                    runbook="two-daemons",
                ) from None

    def _objects_within(self, segment: Segment) -> dict[str, StoredObject]:
        """The objects in folders of segments that begin within this one, by folder and name."""
        found: dict[str, StoredObject] = {}
        for name, listed in self._bucket.each_listed("segments", f"{segment.first_offset:020d}"):
            bounds = segment_bounds(name.partition("/")[0])
            if bounds is None or bounds[0] > segment.last_offset:
                break
            found[name] = listed
        return found


def _files(segment: Segment, text: bytes) -> dict[str, int]:
    """The bytes of a segment's files with rows, by folder and name."""
    folder = segment_name((segment.first_offset, segment.last_offset))
    return {f"{folder}/{name}": size for name, size in sizes(segment, text).items() if name != "segment.json"}


def _link(first_offset: int) -> str:
    return f"chain/{first_offset:020d}.json"


def _own(bucket: Bucket, log_id: str, identity: SourceIdentity, first_offset: int) -> LogFile:
    name = f"{bucket.name}/log.json"
    try:
        text = bucket.get("log.json")
    except FileNotFoundError:
        created = datetime.now(UTC).isoformat(timespec="seconds")
        put_first(bucket, "log.json", LogFile(log_id, identity, created, first_offset).to_json().encode())
        text = bucket.get("log.json")  # the first one counts, which may be another process's
    log = LogFile.from_json(text, name)
    if log.log_id != log_id:
        raise ConfigurationError(
            f"opening the history {bucket.name}: it belongs to another log ({log.log_id}, the topic has {log_id})",
            remedy="set log.kafka.history to another prefix",
            runbook="other-log",
        )
    if log.source != identity:  # the source is on another timeline now
        log = replace(log, source=identity)
        bucket.put("log.json", log.to_json().encode())
    return log

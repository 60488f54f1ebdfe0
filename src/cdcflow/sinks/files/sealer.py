"""Makes segments from the closed journals of a log in a directory, and stores its schemas with them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from cdcflow.errors import InvariantViolated
from cdcflow.log.disk.layer import FileLayer, link_or_copy, remove_tree, storing, write_file
from cdcflow.log.disk.lease import Lease
from cdcflow.log.disk.maintenance_lock import Busy, maintenance
from cdcflow.log.disk.segment_folders import put_in_place, write_segment
from cdcflow.log.files import attached
from cdcflow.log.files.extents import opened_journal
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.segment_writer import seal
from cdcflow.log.format.framing import Damaged
from cdcflow.log.format.journal import AttachedFile, Record, records
from cdcflow.log.format.numbers import in_order
from cdcflow.log.format.segment import Segment, manifest_hash
from cdcflow.sinks.files.recovery import Closed, Opened, clean_up

T = TypeVar("T")

YIELDED_FRAMES = 64


class SealingAbandoned(Exception):
    """Raised instead of finishing a segment for which no time is left. Its journal stays, and the next start seals
    it."""


class Sealing:
    """Seals closed journals. Used by one thread at a time. The log adds shapes to its history; this class only saves
    them."""

    def __init__(self, layout: Layout, opened: Opened, lease: Lease, layer: FileLayer) -> None:
        self._layout = layout
        self._lease = lease
        self._layer = layer
        self._log_id = opened.file.log_id
        self._history = opened.history
        self._schemas_saved = opened.schemas_saved
        self._last_manifest = opened.last_manifest
        self._sealed_last = opened.sealed
        self.ends_at = math.inf
        """No segment is written after this time (of `time.monotonic`). Any thread may set it."""

    def clean_up(self) -> None:
        """Remove leftovers of segments from earlier runs; skipped while another process works on them."""
        with contextlib.suppress(Busy), maintenance(self._layout), storing(f"tidying {self._layout.root}"):
            clean_up(self._layout, self._layer, self._lease.epoch)

    @property
    def newest(self) -> tuple[int, int] | None:
        """First and last offset of the latest segment; None if no segment exists yet."""
        last = self._sealed_last
        return None if last is None else (last.first_offset, last.last_offset)

    def check_time(self) -> None:
        """Raise SealingAbandoned after `ends_at`."""
        if time.monotonic() >= self.ends_at:
            raise SealingAbandoned

    def seal(self, closed: Closed) -> Segment:
        """Make a segment from a closed journal, and remove the journal. The journals after it must have their names.

        Raises:
            SealingAbandoned: see `ends_at`; nothing is left of the segment.
        """
        first, last = closed.header.first_offset, closed.checkpoint.next_offset - 1
        target = self._layout.segment(first, last)
        with storing(f"sealing {target}"):
            # It exists already if only the cleaning up failed the last time.
            if not target.exists():
                self._put_in_place(closed, target)
            segment, text = self._layout.manifest(first, last)
            self._last_manifest, self._sealed_last = manifest_hash(text), segment
            for path in (self._layout.journal(first), *map(self._layout.spool, closed.attached)):
                if path.exists():
                    self._layer.unlink(path)
        return segment

    def _put_in_place(self, closed: Closed, target: Path) -> None:
        temporary = self._layout.segments / f".{target.name}.{self._lease.epoch}.tmp"
        try:
            self._write_segment(closed, temporary)
        except (OSError, SealingAbandoned):
            with contextlib.suppress(OSError):
                remove_tree(self._layer, temporary)
            raise
        self._lease.check()
        self._save_schemas()
        self._lease.check()
        put_in_place(self._layer, self._layout, temporary, target)

    def _write_segment(self, closed: Closed, directory: Path) -> None:
        """Write a segment's files and manifest into a directory; all of it is durable on return."""
        write_segment(
            self._layer,
            directory,
            lambda open_target: seal(
                self._closed_records(closed),
                lambda record: self._in_time(attached.rows(self._layout, record)),
                open_target,
                log_id=self._log_id,
                base=closed.header.base,
                epoch=closed.header.epoch,
                previous=self._last_manifest,
                previous_offset=self._sealed_last.first_offset if self._sealed_last else None,
                xid_newest=self._sealed_last.xid_newest if self._sealed_last else None,
                take_over=lambda record, name: self._take_over(record, directory / name),
            ),
        )

    def _closed_records(self, closed: Closed) -> Iterator[Record]:
        with opened_journal(self._layout, closed.header.first_offset) as (file, header, path):
            try:
                found = records(file, header, str(path), end=closed.bytes)
                for number, record in enumerate(in_order(found, closed.header, str(path))):
                    # Small frames are decoded by Python alone, and no other thread runs during that: so yield often.
                    if number % YIELDED_FRAMES == 0:
                        time.sleep(0)
                    self.check_time()
                    yield record
            except Damaged as damage:
                raise InvariantViolated(
                    f"sealing {path}: {damage}, and it was durable", runbook="log-damaged"
                ) from None

    def _in_time(self, found: Iterator[T]) -> Iterator[T]:
        for one in found:
            self.check_time()
            yield one

    def _take_over(self, record: AttachedFile, target: Path) -> None:
        # A second name for it, not a rename: a segment that is never finished is deleted with its files.
        link_or_copy(self._layer, self._layout.spool(record.name), target)

    def _save_schemas(self) -> None:
        # A replaced writer that was suspended after the check above may have restored its own, older file.
        if len(self._history) > self._schemas_saved or (self._lease.replaces and not self._has_saved()):
            self.put_schemas()

    def _has_saved(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._layout.schemas.read_bytes() == self._history.to_json().encode()
        return False

    def put_schemas(self) -> None:
        saved = len(self._history)
        write_file(self._layer, self._layout.schemas, self._history.to_json().encode(), self._lease.word)
        self._schemas_saved = saved

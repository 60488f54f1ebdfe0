"""Uploads again what the bucket has lost, using any copy on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from cdcflow.log.disk.layer import OS_LAYER, remove_tree, storing
from cdcflow.log.disk.maintenance_lock import maintenance
from cdcflow.log.files.layout import Bounds, Layout, widest_segments
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.log.maintenance.retention import REMOVED
from cdcflow.sinks.objects.inventory import batches, counting, suspects, together, wrong_parts
from cdcflow.sinks.objects.remote import RemoteBucket
from cdcflow.sinks.objects.upload import missing_parts, put_again
from cdcflow.stores.bucket import Bucket, Digests

FindCopy = Callable[[Segment, SegmentFile], Path | None]

_log = structlog.get_logger("cdcflow")


class Restorer:
    """Compares the uploaded segments with the bucket's contents, and restores them. `wait`: see `maintenance`."""

    def __init__(self, layout: Layout, bucket: Bucket, cached: FindCopy, wait: Callable[[float], bool]) -> None:
        self._layout = layout
        self._bucket = bucket
        self._cached = cached
        self._wait = wait

    def compare(self, last_offset: int) -> list[Bounds]:
        """Check all segments up to `last_offset`, and upload again what is missing. Return those with no copy left.

        Raises:
            SinkUnavailable, ConfigurationError: the store is unavailable, or refuses; that is no loss.
            InvariantViolated: another writer uploaded something else there.
        """
        lost: list[Bounds] = []
        for some in batches(suspects(self._bucket, self._layout, last_offset)):
            with maintenance(self._layout, self._wait):
                still = set(counting(self._layout, last_offset))
                lost += [bounds for bounds in some if bounds in still and not self._is_there(bounds)]
        return lost

    def is_stored(self, bounds: Bounds) -> bool:
        """Whether the bucket has a segment with the content that was sealed; missing files are uploaded again first.

        Called before the local files are dropped, with the maintenance lock held.
        """
        segment, text = self._layout.manifest(*bounds)
        wrong = wrong_parts(self._bucket, segment, text, self._layout.segment(*bounds))
        return not wrong or self._put_again(bounds, wrong)

    def _is_there(self, bounds: Bounds) -> bool:
        missing = missing_parts(self._bucket, *self._layout.manifest(*bounds))
        return not missing or self._put_again(bounds, missing) or self._took_apart(bounds)

    def _took_apart(self, compacted: Bounds) -> bool:
        """Undo a compaction whose segment is lost while its original segments all still exist. Return whether it was
        undone.

        The originals have the same rows, and the hash chain goes through them as before.
        """
        covered = [b for b in self._layout.listed_segments()[0] if b != compacted and _covers(compacted, b)]
        parts = widest_segments(covered)
        if together(parts) != [compacted]:
            return False
        if any(missing_parts(self._bucket, *self._layout.manifest(*part)) for part in parts):
            return False
        RemoteBucket(self._bucket).remove(compacted)
        target = self._layout.segment(*compacted)
        with storing(f"undoing the compaction into {target}"):
            temporary = target.with_name(f".{target.name}{REMOVED}")
            OS_LAYER.rename(target, temporary)
            remove_tree(OS_LAYER, temporary)
        _log.warning("compaction undone", first_offset=compacted[0], last_offset=compacted[1], segments=len(parts))
        return True

    def _put_again(self, bounds: Bounds, names: Sequence[str]) -> bool:
        segment, text = self._layout.manifest(*bounds)
        gone = put_again(self._bucket, segment, text, names, lambda file: self._copy(segment, file))
        put = [name for name in names if name not in gone and (not gone or name != "segment.json")]
        if put:
            _log.warning("lost objects uploaded again", first_offset=bounds[0], last_offset=bounds[1], files=len(put))
        return not gone

    def _copy(self, segment: Segment, file: SegmentFile) -> Path | None:
        """Return a file with the sealed content on this machine, in the log's directory or in the cache; None if
        neither has one."""
        directory = self._layout.segment(segment.first_offset, segment.last_offset)
        for path in (directory / file.path, self._cached(segment, file)):
            try:
                if path is not None and Digests.of(path).sha256 == file.sha256:
                    return path
            except FileNotFoundError:
                continue
        return None


def _covers(wide: Bounds, narrow: Bounds) -> bool:
    return wide[0] <= narrow[0] and narrow[1] <= wide[1]

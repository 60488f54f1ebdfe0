"""A log's segments in a bucket, for who may change them: what `sinks.retention` asks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cdcflow.changelog.layout import Bounds, Layout, segment_bounds, segment_name
from cdcflow.changelog.segment import Segment
from cdcflow.sinks.objects.bucket import Bucket
from cdcflow.sinks.objects.uploaded import Uploaded
from cdcflow.sinks.objects.uploading import missing_parts, put_log, put_segment


class RemoteBucket:
    """Implements `cdcflow.sinks.retention.RemoteStore`."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def uploaded(self, layout: Layout) -> int:
        known = Uploaded.read(layout)
        return 0 if known is None else known.last_offset

    def put_log(self, layout: Layout) -> None:
        put_log(self._bucket, layout)

    def put(self, segment: Segment, text: bytes, directory: Path) -> None:
        put_segment(self._bucket, segment, text, directory)

    def segments(self) -> Sequence[Bounds]:
        return [b for name in self._bucket.folders("segments") if (b := segment_bounds(name)) is not None]

    def is_whole(self, segment: Segment, text: bytes) -> bool:
        return not missing_parts(self._bucket, segment, text)

    def manifest(self, bounds: Bounds) -> bytes | None:
        try:
            return self._bucket.get(f"segments/{segment_name(bounds)}/segment.json")
        except FileNotFoundError:
            return None

    def remove(self, bounds: Bounds) -> None:
        folder = f"segments/{segment_name(bounds)}"
        self._bucket.delete([f"{folder}/segment.json"])
        self._bucket.delete([f"{folder}/{name}" for name in self._bucket.listed(folder)])

"""Changes a log's segments and states in a bucket: the operations that `log.maintenance.retention` needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cdcflow.log.files import states
from cdcflow.log.files.layout import Bounds, Layout, segment_bounds, segment_name, state_name, state_offset
from cdcflow.log.format.segment import Segment
from cdcflow.sinks.objects.upload import missing_parts, put_log, put_manifest, put_segment, put_state
from cdcflow.sinks.objects.uploaded import Uploaded
from cdcflow.stores.bucket import Bucket


class RemoteBucket:
    """Implements `cdcflow.log.maintenance.retention.RemoteStore`."""

    def __init__(self, bucket: Bucket, check_writer: Callable[[], None] = lambda: None) -> None:
        """`check_writer` raises if another machine writes the log: two must not maintain one bucket."""
        self._bucket = bucket
        self._check_writer = check_writer

    def uploaded_offset(self, layout: Layout) -> int:
        known = Uploaded.read(layout)
        return 0 if known is None else known.last_offset

    def put_log(self, layout: Layout) -> None:
        self._check_writer()
        put_log(self._bucket, layout)

    def put(self, segment: Segment, text: bytes, directory: Path) -> None:
        self._check_writer()
        put_segment(self._bucket, segment, text, directory)

    def put_manifest(self, segment: Segment, text: bytes) -> None:
        self._check_writer()
        put_manifest(self._bucket, segment, text)

    def put_state(self, layout: Layout, offset: int) -> None:
        self._check_writer()
        put_state(self._bucket, states.folder_of(layout, offset), states.open_state(layout, offset))

    def states(self) -> Sequence[int]:
        names = self._bucket.folders("states")
        return sorted(offset for name in names if (offset := state_offset(name)) is not None)

    def remove_state(self, offset: int) -> None:
        self._remove(f"states/{state_name(offset)}", "state.json")

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
        self._remove(f"segments/{segment_name(bounds)}", "segment.json")

    def _remove(self, folder: str, manifest: str) -> None:
        """Delete the manifest first: without it, the rest no longer counts."""
        self._check_writer()
        self._bucket.delete([f"{folder}/{manifest}"])
        self._bucket.delete([f"{folder}/{name}" for name in self._bucket.list_objects(folder)])

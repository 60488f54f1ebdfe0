"""Whether a bucket still has what was uploaded: a store can be emptied, and lose or replace objects, like any disk.

    at a start, then daily    one listing, names and sizes ─▶ differences are checked again ─▶ restored, or reported
    before local files go     that segment's listing, and its content

One listing proves nothing by itself: while it runs, compaction and expiry remove segments on purpose. So what it lacks
is checked again under the maintenance lock, where no process removes anything. A store that is unavailable or refuses
raises an error, and that is no loss.

Content without reading it back: a plain S3 store tags an object with the MD5 of its content, which is compared with the
local file. If the tag is something else (encryption by the store's keys) the object is read once.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cdcflow.log.files.layout import Bounds, Layout, segment_bounds, segment_name
from cdcflow.log.format.segment import Segment
from cdcflow.sinks.objects.upload import sizes
from cdcflow.stores.bucket import Bucket, Digests

AT_ONCE = 16
"""How many suspects are checked each time the maintenance lock is held."""


def counting(layout: Layout, last_offset: int) -> list[Bounds]:
    """Return the segments up to an offset that count: not expired, and not replaced by a compacted one."""
    first_offset = layout.log_file().first_offset
    return [b for b in layout.segment_offsets() if b[0] >= first_offset and b[1] <= last_offset]


def suspects(bucket: Bucket, layout: Layout, last_offset: int) -> list[Bounds]:
    """Return the segments up to `last_offset` that one listing of the bucket lacks, wholly or in part. The caller
    checks each again.

    Memory holds the names of the segments and one page of the listing.
    """
    expected = counting(layout, last_offset)
    whole = bytearray(len(expected))
    partly: dict[int, dict[str, int]] = {}
    before = -1
    for name, listed in bucket.each_listed("segments"):
        folder, _, file = name.partition("/")
        at = _index(expected, segment_bounds(folder))
        if at is None:
            continue
        if at != before and before in partly:
            _settle(layout, expected[before], before, partly, whole)
            time.sleep(0)  # the capture's thread needs the interpreter too
        partly.setdefault(at, {})[file] = listed.bytes
        before = at
    # A store need not list in order: segments whose objects were not contiguous are compared now.
    for at in list(partly):
        _settle(layout, expected[at], at, partly, whole)
    return [bounds for bounds, is_whole in zip(expected, whole, strict=True) if not is_whole]


def together(bounds: Iterable[Bounds]) -> list[Bounds]:
    """Combine neighbours into ranges, ascending."""
    found: list[Bounds] = []
    for first, last in sorted(bounds):
        if found and found[-1][1] + 1 == first:
            found[-1] = found[-1][0], last
        else:
            found.append((first, last))
    return found


def batches(bounds: Sequence[Bounds]) -> Iterator[Sequence[Bounds]]:
    for start in range(0, len(bounds), AT_ONCE):
        yield bounds[start : start + AT_ONCE]


def wrong_parts(bucket: Bucket, segment: Segment, text: bytes, directory: Path) -> list[str]:
    """Return the files of a segment whose content in the bucket differs from what was sealed. `directory` has the local
    files.

    If a local file is damaged, the bucket's content is read and decides.
    """
    folder = f"segments/{segment_name((segment.first_offset, segment.last_offset))}"
    listed = bucket.list_objects(folder)
    wrong = [name for name, size in sizes(segment, text).items() if name not in listed or listed[name].bytes != size]
    for file in segment.files:
        here = directory / file.path
        if file.path in wrong or not here.exists():  # some were dropped already: then all were compared
            continue
        digests = Digests.of(here)
        if (digests.sha256, digests.tag) != (file.sha256, listed[file.path].tag) and not _holds(
            bucket, f"{folder}/{file.path}", file.sha256
        ):
            wrong.append(file.path)
    return sorted(wrong)


def _holds(bucket: Bucket, name: str, sha256: str) -> bool:
    try:
        return bucket.hash_of(name) == sha256
    except FileNotFoundError:
        return False


def _index(expected: Sequence[Bounds], bounds: Bounds | None) -> int | None:
    if bounds is None:
        return None
    at = bisect_left(expected, bounds)
    return at if at < len(expected) and expected[at] == bounds else None


def _settle(layout: Layout, bounds: Bounds, at: int, partly: dict[int, dict[str, int]], whole: bytearray) -> None:
    """Compare the listed objects of one segment with its manifest; drop them if nothing is missing."""
    try:
        wanted = sizes(*layout.manifest(*bounds))
    except FileNotFoundError:
        whole[at] = True  # expired, or compacted since
        del partly[at]
        return
    if all(partly[at].get(name) == size for name, size in wanted.items()):
        whole[at] = True
        del partly[at]

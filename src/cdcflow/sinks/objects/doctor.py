"""The store's part of `cdcflow doctor` and `cdcflow log check`: whether it takes the keys, and what it has lost."""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.capture.ports.findings import Finding
from cdcflow.errors import CdcflowError, SinkUnavailable
from cdcflow.log.files.layout import Bounds, Layout, LogFile
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.log.read.check import Fault
from cdcflow.sinks.objects.inventory import counting, suspects, together
from cdcflow.sinks.objects.restore import FindCopy
from cdcflow.sinks.objects.upload import missing_parts
from cdcflow.sinks.objects.uploaded import Uploaded, loss
from cdcflow.stores.bucket import Bucket


def doctor(bucket: Bucket, layout: Layout, cached: FindCopy) -> list[Finding]:
    """Read log.json and a listing from the store: that needs the same rights, keys and bucket as a capture.

    On the machine where the log is written, compare the listing with what was uploaded. Nothing is changed.
    """
    subject = f"store {bucket.name}"
    try:
        found = [_log_there(bucket, layout, subject)]
        bucket.folders("segments")
        if layout.log_json.exists():
            found += _losses(missing(bucket, layout, cached), bucket, layout, subject)
    except SinkUnavailable as error:
        text = f"it cannot be reached: {_first_line(error)}; a capture continues and keeps segments on the local disk"
        return [Finding("warning", subject, text, error.remedy or "check log.objects.endpoint")]
    except CdcflowError as error:
        return [Finding("error", subject, _first_line(error), error.remedy)]
    return found


def faults(bucket: Bucket, layout: Layout, cached: FindCopy) -> list[Fault]:
    """Return what the store has lost and this machine still has. (Reading the log finds what neither has.)"""
    here, _ = missing(bucket, layout, cached)
    return [
        Fault(
            f"{bucket.name}/segments",
            f"offsets {first} to {last} were uploaded and are missing; they are still on this machine, and the "
            f"daemon uploads them again at its next start",
        )
        for first, last in here
    ]


def missing(bucket: Bucket, layout: Layout, cached: FindCopy) -> tuple[list[Bounds], list[Bounds]]:
    """Return what the store has lost of the uploaded segments: first those still on this machine, then the others.

    Neighbours are combined.
    """
    known = Uploaded.read(layout)
    if known is None:
        return [], []
    here: list[Bounds] = []
    gone: list[Bounds] = []
    for bounds in suspects(bucket, layout, known.last_offset):
        try:
            segment, text = layout.manifest(*bounds)
        except FileNotFoundError:
            continue
        # No lock is held: what expires or is compacted concurrently no longer exists, and no longer counts.
        if (names := missing_parts(bucket, segment, text)) and bounds in counting(layout, known.last_offset):
            files = [file for file in segment.files if file.path in names]
            (here if all(_is_here(layout, cached, segment, file) for file in files) else gone).append(bounds)
    return together(here), together(gone)


def _log_there(bucket: Bucket, layout: Layout, subject: str) -> Finding:
    try:
        theirs = LogFile.from_json(bucket.get("log.json"), f"{bucket.name}/log.json")
    except FileNotFoundError:
        return Finding("ok", subject, "it answers and accepts the keys; there is no log in it yet")
    if layout.log_json.exists() and theirs.log_id != layout.log_file().log_id:
        text = f"it has the log {theirs.log_id}, and {layout.root} has a different one"
        return Finding("error", subject, text, "set log.objects.url to another prefix")
    return Finding("ok", subject, "it answers, accepts the keys, and has the log")


def _is_here(layout: Layout, cached: FindCopy, segment: Segment, file: SegmentFile) -> bool:
    copy = cached(segment, file)
    return layout.is_here(segment, file) or (copy is not None and copy.exists())


def _losses(lost: tuple[list[Bounds], list[Bounds]], bucket: Bucket, layout: Layout, subject: str) -> Sequence[Finding]:
    here, gone = lost
    found: list[Finding] = []
    if here:
        ranges = ", ".join(f"{a}-{b}" for a, b in here)
        text = f"it has lost offsets {ranges}, which are still on this machine"
        found.append(
            Finding("warning", subject, text, "start the daemon, or restart it: it uploads them when it starts")
        )
    if gone:
        found.append(Finding("error", subject, *loss(layout, bucket.name, gone)))
    return found


def _first_line(error: CdcflowError) -> str:
    return str(error).split("\n", maxsplit=1)[0]

"""Uploads one sealed segment to a bucket, so that after a crash between any two requests the upload can be repeated.

    log.json ─▶ schemas.json ─▶ data files ─▶ segment.json ─▶ checked
    once         when changed     each if new    if new, last    sizes, manifest

Every object has one right content, known before the first request: an object that exists already must have it, whether
an earlier try uploaded it or this one whose answer was lost. If the content differs, another process writes to the same
place; cdcflow reports that instead of overwriting. Readers count a segment once it has its manifest, which is written
last and only if it does not exist: of two writers one wins, and the other gets an error that names the winner.

A data file of more than 64 MiB is uploaded in parts, which S3 does not make conditional. A competitor could then
replace its content undetected here, but every reader compares the manifest's sha256.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from cdcflow.errors import ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.log.files.layout import Layout, LogFile, segment_name, state_name
from cdcflow.log.files.states import LogState
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.stores.bucket import AlreadyThere, Bucket


def put_log(bucket: Bucket, layout: Layout) -> None:
    """Write this log's log.json to the bucket, or check that it exists; bring it up to date.

    Raises:
        ConfigurationError: another log has this place, or the store does not support conditional writes.
    """
    text = layout.log_json.read_bytes()
    ours = LogFile.from_json(text, str(layout.log_json))
    if not put_first(bucket, "log.json", text):
        _bring_up_to_date(bucket, text, ours)


def put_first(bucket: Bucket, name: str, text: bytes) -> bool:
    """Write an object, and check that it cannot be written again. Return false if it existed already.

    Raises:
        ConfigurationError: the store does not support conditional writes.
    """
    try:
        bucket.put_new(name, text)
    except AlreadyThere:
        return False
    try:
        bucket.put_new(name, text)
    except AlreadyThere:
        return True
    raise ConfigurationError(
        f"writing {bucket.name}/{name}: the store overwrites an object despite a conditional write "
        f"(If-None-Match: *), so two writers would not notice each other",
        remedy="use a store, or a version or mode of it, with conditional writes",
        runbook="store-unsuitable",
    )


def _bring_up_to_date(bucket: Bucket, text: bytes, ours: LogFile) -> None:
    found = bucket.get("log.json")
    theirs = LogFile.from_json(found, f"{bucket.name}/log.json")
    if theirs.log_id != ours.log_id:
        raise ConfigurationError(
            f"uploading the log {ours.log_id} to {bucket.name}: it already has the log {theirs.log_id} of"
            f" {theirs.source.kind} system {theirs.source.system_id}, database {theirs.source.database}",
            remedy="set log.objects.url to another prefix",
            runbook="other-log",
        )
    if found != text:
        bucket.put("log.json", text)


def put_segment(bucket: Bucket, segment: Segment, text: bytes, directory: Path) -> None:
    """Upload a segment's files, then its manifest (`text`); on return all of it was seen in the bucket.

    `directory` has the files.

    Raises:
        InvariantViolated: different content exists already; the message names its writer.
    """
    folder = f"segments/{segment_name((segment.first_offset, segment.last_offset))}"
    if _has_manifest(bucket, folder, segment, text):
        _look(bucket, folder, segment, text)
        return
    for file in segment.files:
        put_file(bucket, f"{folder}/{file.path}", directory / file.path, file.sha256)
    put_manifest(bucket, segment, text)


def put_manifest(bucket: Bucket, segment: Segment, text: bytes) -> None:
    """Upload the manifest of a segment whose files were uploaded; on return all of it was seen in the bucket.

    Raises: as `put_segment`.
    """
    folder = f"segments/{segment_name((segment.first_offset, segment.last_offset))}"
    try:
        bucket.put_new(f"{folder}/segment.json", text)
    except AlreadyThere:
        _has_manifest(bucket, folder, segment, text)
    _look(bucket, folder, segment, text)


def put_state(bucket: Bucket, directory: Path, state: LogState) -> None:
    """Upload a state of the log's tables, its manifest last. A whole one that exists stays: it has the same content."""
    folder = f"states/{state_name(state.offset)}"
    found = bucket.list_objects(folder)
    if "state.json" in found:
        return
    bucket.delete([f"{folder}/{name}" for name in found])  # of an interrupted upload; its files may differ
    for entry in state.tables.values():
        put_file(bucket, f"{folder}/{entry.file}", directory / entry.file, entry.sha256)
    with contextlib.suppress(AlreadyThere):
        bucket.put_new(f"{folder}/state.json", (directory / "state.json").read_bytes())


def _has_manifest(bucket: Bucket, folder: str, segment: Segment, text: bytes) -> bool:
    try:
        found = bucket.get(f"{folder}/segment.json")
    except FileNotFoundError:
        return False
    if found == text:
        return True
    raise InvariantViolated(
        f"uploading segment {segment.first_offset}-{segment.last_offset} (epoch {segment.epoch}) of the log"
        f" {segment.log_id} into {bucket.name}: {_whose(found)} has uploaded a segment with the same offsets and "
        f"other content there",
        remedy="a log has one writer: stop the other one (a copy of this log's directory?), or give this one "
        "another log.objects.url",
        runbook="two-daemons",
    )


def _whose(found: bytes) -> str:
    try:
        value = json.loads(found)
        return f"epoch {int(value['epoch'])} of the log {str(value['log_id'])[:64]}"
    except (ValueError, KeyError, TypeError):
        return "somebody"


def put_file(bucket: Bucket, name: str, path: Path, sha256: str) -> None:
    """Upload a file, or check that it exists with its content.

    Raises:
        InvariantViolated: different content exists, or the file is missing on this machine.
    """
    try:
        bucket.put_new(name, path)
    except AlreadyThere:
        if bucket.hash_of(name) != sha256:
            raise InvariantViolated(
                f"uploading {bucket.name}/{name}: it exists already, with other content: something else writes there",
                remedy="a log has one writer: stop the other one, or set another log.objects.url",
                runbook="two-daemons",
            ) from None
    except FileNotFoundError:
        raise InvariantViolated(
            f"uploading {bucket.name}/{name}: {path} is missing, and the segment is not in the store either",
            remedy="restore either from a copy; `cdcflow log check` lists what else is missing",
            runbook="log-damaged",
        ) from None


def put_again(
    bucket: Bucket, segment: Segment, text: bytes, lost: Sequence[str], find: Callable[[SegmentFile], Path | None]
) -> list[str]:
    """Restore what the bucket has lost of a segment that was whole there. Return the names of files with no copy left.

    `lost` are the names that are missing in the bucket, or have other content. `find` returns a local file with the
    sealed content, or None. Other content is replaced only if the manifest there is this writer's, with which
    readers compare it. The manifest is written last, and only when everything it names exists: the segment does not
    count before.

    Raises:
        InvariantViolated: another writer's manifest exists.
    """
    folder = f"segments/{segment_name((segment.first_offset, segment.last_offset))}"
    is_ours = _has_manifest(bucket, folder, segment, text)
    gone: list[str] = []
    for file in segment.files:
        if file.path not in lost:
            continue
        path = find(file)
        if path is None:
            gone.append(file.path)
            continue
        if is_ours:
            bucket.delete([f"{folder}/{file.path}"])
        try:
            put_file(bucket, f"{folder}/{file.path}", path, file.sha256)
        except InvariantViolated:
            if path.exists():
                raise
            gone.append(file.path)  # a cached copy that was evicted since
    if gone:
        return gone
    if is_ours:
        _look(bucket, folder, segment, text)
    else:
        put_manifest(bucket, segment, text)
    return []


def missing_parts(bucket: Bucket, segment: Segment, text: bytes) -> list[str]:
    """The files of a segment that the bucket does not list with their sizes; one request."""
    found = bucket.list_objects(f"segments/{segment_name((segment.first_offset, segment.last_offset))}")
    return sorted(name for name, size in sizes(segment, text).items() if name not in found or found[name].bytes != size)


def sizes(segment: Segment, text: bytes) -> dict[str, int]:
    """The contents of a whole segment: bytes by file name, including its manifest (`text`)."""
    return {"segment.json": len(text), **{file.path: file.bytes for file in segment.files}}


def _look(bucket: Bucket, folder: str, segment: Segment, text: bytes) -> None:
    """Check that the whole segment is listed, with its sizes, before anything local is dropped."""
    wrong = missing_parts(bucket, segment, text)
    if wrong:
        raise SinkUnavailable(
            f"checking {bucket.name}/{folder}: {wrong[0]} was uploaded, but the store does not have it as uploaded",
            runbook="store-unreachable",
        )

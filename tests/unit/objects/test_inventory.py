"""What a listing of the bucket proves, and what the store's errors mean, without a store."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from obstore.exceptions import GenericError

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.log.files.layout import Layout, LogFile, segment_name
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.objects.inventory import suspects, together
from cdcflow.stores import bucket, refusals
from cdcflow.stores.bucket import Bucket, Digests, StoredObject

SEGMENTS = 30


class Listing:
    """A bucket that only lists: these objects, in this order."""

    def __init__(self, found: list[tuple[str, int]]) -> None:
        self.found = found

    def each_listed(self, name: str) -> Iterator[tuple[str, StoredObject]]:
        assert name == "segments"
        yield from ((path, StoredObject(size)) for path, size in self.found)


@pytest.fixture
def log(tmp_path: Path) -> tuple[Layout, list[tuple[str, int]]]:
    """A log of segments with one offset each, and what a bucket that has all of them lists."""
    layout = Layout(tmp_path)
    layout.segments.mkdir()
    layout.log_json.write_text(LogFile("id", SourceIdentity("postgres", "1", "shop", "1"), "now", 3).to_json())
    listed: list[tuple[str, int]] = []
    for offset in range(1, SEGMENTS + 1):
        files = (SegmentFile("s.t.1.parquet", 1, 1000, ""), SegmentFile("transactions.parquet", 1, 100, ""))
        text = Segment("id", offset, offset, 1, 1, offset, offset, files, {}, "", 1).to_json()
        layout.segment(offset, offset).mkdir()
        (layout.segment(offset, offset) / "segment.json").write_text(text)
        name = segment_name((offset, offset))
        listed += [(f"{name}/s.t.1.parquet", 1000), (f"{name}/segment.json", len(text))]
        listed += [(f"{name}/transactions.parquet", 100)]
    return layout, listed


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "in no order"])
def test_exactly_what_a_listing_lacks_is_suspected(log: tuple[Layout, list[tuple[str, int]]], in_order: bool) -> None:
    """A listing arrives in pages that end anywhere, and not every store sorts; expired segments are missing on
    purpose."""
    layout, listed = log
    gone = {segment_name((offset, offset)) for offset in (1, 4, SEGMENTS)}
    found = [(name, size) for name, size in listed if name.split("/")[0] not in gone]
    found.remove((f"{segment_name((7, 7))}/transactions.parquet", 100))
    found[found.index((f"{segment_name((9, 9))}/s.t.1.parquet", 1000))] = (f"{segment_name((9, 9))}/s.t.1.parquet", 999)
    found.append(("not a segment/x", 1))
    if not in_order:
        random.Random(5).shuffle(found)
    missing = [(4, 4), (7, 7), (9, 9)]
    assert suspects(cast(Bucket, Listing(found)), layout, SEGMENTS - 1) == missing
    assert suspects(cast(Bucket, Listing(found)), layout, SEGMENTS) == [*missing, (SEGMENTS, SEGMENTS)]
    assert suspects(cast(Bucket, Listing(listed)), layout, SEGMENTS) == []


def test_neighbours_are_reported_as_one_range() -> None:
    """An emptied bucket of fifty thousand segments is one range, not fifty thousand."""
    assert together([(5, 6), (1, 2), (3, 4), (9, 9)]) == [(1, 6), (9, 9)]


@pytest.mark.parametrize("size", [0, 1, 10, 11, 20, 25])
def test_digests_are_those_that_a_plain_store_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Equal tags save reading every object back before its file is removed; an object uploaded in parts has a different
    tag."""
    monkeypatch.setattr(bucket, "ONE_REQUEST_BYTES", 10)
    monkeypatch.setattr(bucket, "PART_BYTES", 10)
    content = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(content)
    found = Digests.of(tmp_path / "file")
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    if size <= 10:
        assert found.tag == hashlib.md5(content, usedforsecurity=False).hexdigest()
    else:
        parts = [hashlib.md5(content[n : n + 10], usedforsecurity=False).digest() for n in range(0, size, 10)]
        assert found.tag == hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest() + f"-{len(parts)}"


def answer(status: str, code: str) -> str:
    return f"Generic S3 error: … status code: {status}: <Error><Code>{code}</Code><Key>secret-row</Key></Error>"


def test_object_counts_as_missing_only_if_the_store_reports_it() -> None:
    """A gateway that answers a wrong key with 404 has lost nothing."""
    assert refusals.is_missing(FileNotFoundError(answer("404 Not Found", "NoSuchKey")))
    assert refusals.is_missing(FileNotFoundError("Object at location x not found: HEAD …"))
    for code in ("XAdminUserNotFound", "NoSuchBucket", "Anything"):
        error = FileNotFoundError(answer("404 Not Found", code))
        assert not refusals.is_missing(error)
        assert isinstance(refusals.refused_or_away("reading x", error), ConfigurationError)


@pytest.mark.parametrize(
    ("code", "setting"),
    [
        ("NoSuchBucket", "log.objects.url"),
        ("InvalidAccessKeyId", "log.objects.access_key"),
        ("SignatureDoesNotMatch", "log.objects.secret_key"),
        ("AuthorizationHeaderMalformed", "log.objects.region"),
        ("AccessDenied", "s3:ListBucket"),
    ],
)
def test_refusals_name_the_setting(code: str, setting: str) -> None:
    """A single text for all of them sends operators to the wrong place; the rest of the answer may hold anything."""
    found = refusals.refused_or_away("reading x", GenericError(answer("403 Forbidden", code)))
    assert isinstance(found, ConfigurationError)
    assert setting in (found.remedy or "")
    assert "secret-row" not in str(found)


def test_error_of_a_machine_without_keys_names_the_settings_for_them() -> None:
    """The role's service may be late at a machine's start, so it is waited for; but the settings are named."""
    text = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token - status code: 403 Forbidden"
    found = refusals.refused_or_away("reading x", GenericError(text))
    assert isinstance(found, SinkUnavailable)
    assert "log.objects.access_key" in (found.remedy or "")


def test_store_that_does_not_answer_is_named_with_its_address() -> None:
    """The URL of a bucket does not show where it is; a wrong endpoint is the most common mistake."""
    found = refusals.refused_or_away(
        "writing x", GenericError("a - HTTP error: error sending request"), "http://lake:9"
    )
    assert "http://lake:9 does not answer (HTTP error: error sending request)" in str(found)
    assert found.remedy == "check that this machine reaches http://lake:9, and that log.objects.endpoint is right"
    slow = refusals.refused_or_away("writing x", GenericError(answer("503 Slow Down", "SlowDown")), "http://lake:9")
    assert "does not answer" not in str(slow)

"""Where a log's files are: in its directory, in a store, or nowhere, and how this is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import UPLOADS, Layout, segment_bounds
from cdcflow.log.format.segment import Segment, SegmentFile

FILE = SegmentFile("shop.orders.1.parquet", 1, 1, "", None, 1, 1, 1, None, None, {"c": 1}, 0, 0)
SEGMENT = Segment("log-a", 1, 9, 1, 9, 1, 1, (FILE,), {}, "", 1)


class Store:
    """Records its requests."""

    name = "s3://bucket/shop"

    def __init__(self) -> None:
        self.asked: list[object] = []

    def file(self, bounds: tuple[int, int], file: SegmentFile, *, from_store: bool = False) -> Path:
        self.asked.append((bounds, file.path, from_store))
        return Path("/from/the/store")

    def segments(self) -> list[tuple[int, int]]:
        return [(10, 12), (1, 9)]


def with_store(root: Path) -> tuple[Layout, Store]:
    store = Store()
    given: Any = store
    return Layout(root, given), store


def test_local_file_is_not_requested_from_the_store(tmp_path: Path) -> None:
    """A local file was compared with its manifest already; fetching it again costs money."""
    layout, store = with_store(tmp_path)
    path = layout.segment(1, 9) / FILE.path
    path.parent.mkdir(parents=True)
    path.touch()
    assert layout.file(SEGMENT, FILE) == path
    assert store.asked == []
    assert layout.is_here(SEGMENT, FILE)


def test_missing_local_file_is_fetched_from_the_store(tmp_path: Path) -> None:
    """It is requested by its segment's offsets and its name; a copy that was fetched before is accepted unless the
    caller refuses that."""
    layout, store = with_store(tmp_path)
    assert layout.file(SEGMENT, FILE) == Path("/from/the/store")
    assert store.asked == [((1, 9), FILE.path, False)]
    layout.file(SEGMENT, FILE, from_store=True)
    assert store.asked[1:] == [((1, 9), FILE.path, True)]
    assert not layout.is_here(SEGMENT, FILE)


def test_log_whose_files_went_to_a_store_records_it_where_the_settings_do_not(tmp_path: Path) -> None:
    """Otherwise a file would seem lost that is only elsewhere."""
    layout = Layout(tmp_path)
    assert layout.file(SEGMENT, FILE) == layout.segment(1, 9) / FILE.path, "its reader gets an error that it is missing"
    (tmp_path / UPLOADS).touch()
    with pytest.raises(ConfigurationError, match=r"have moved to an object store.*\n?.*log\.objects"):
        layout.file(SEGMENT, FILE)


def test_a_log_is_called_by_where_it_is_written(tmp_path: Path) -> None:
    """Its directory, and the store only for readers that have no copy of the file."""
    layout, _ = with_store(tmp_path)
    assert (layout.is_home, layout.name) == (False, "s3://bucket/shop")
    assert layout.listed_segments() == ([(1, 9), (10, 12)], [])
    layout.log_json.touch()
    assert (layout.is_home, layout.name) == (True, str(tmp_path))
    assert layout.listed_segments() == ([], [])
    assert (Layout(tmp_path / "x").is_home, Layout(tmp_path / "x").name) == (True, str(tmp_path / "x"))


def test_listings_are_in_the_order_of_offsets_and_know_what_was_never_finished(tmp_path: Path) -> None:
    """A directory gives its names in any order."""
    layout = Layout(tmp_path)
    for first, last in ((100, 200), (1, 9), (10, 99)):
        layout.segment(first, last).mkdir(parents=True)
    (layout.segments / ".unfinished.tmp").mkdir()
    (layout.segments / "somebody-else-s").mkdir()
    assert layout.listed_segments() == ([(1, 9), (10, 99), (100, 200)], [layout.segments / ".unfinished.tmp"])
    layout.segment(1, 99).mkdir()
    assert layout.segment_offsets() == [(1, 99), (100, 200)], "one that took the place of others covers them"


def test_only_what_is_named_like_a_segment_is_one() -> None:
    """Numbers are parsed more freely than they are written: a sign, a space or a line break makes it a different
    name."""
    name = f"{12:020}-{345:020}"
    assert segment_bounds(name) == (12, 345)
    assert segment_bounds(f"{10**20 - 1}-{10**20 - 1}") == (10**20 - 1, 10**20 - 1)
    for at in range(len(name)):
        for other in "+_ x.-":
            changed = f"{name[:at]}{other}{name[at + 1 :]}"
            assert segment_bounds(changed) is None or changed == name, changed
    for changed in ("", name[1:], f"{name}0", f".{name}.tmp", f"{12:019}-{345:021}", f"{12:021}-{345:019}"):
        assert segment_bounds(changed) is None, changed


def test_a_manifest_of_another_version_is_refused_by_its_name() -> None:
    """A caller that has only its text passes no name: then the file's usual name is used."""
    for version, which in ((99, "newer"), (1, "older")):
        text = json.dumps({"version": version})
        with pytest.raises(ConfigurationError, match=rf"reading segment\.json: an? {which} cdcflow wrote it"):
            Segment.from_json(text)
        with pytest.raises(ConfigurationError, match=rf"reading there: an? {which} cdcflow wrote it"):
            Segment.from_json(text, "there")

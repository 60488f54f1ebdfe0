"""The names and contents of the files in a log's directory, and which of them are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.log.files.layout import Layout, LogFile, segment_bounds, segment_name, widest_segments
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.format.segment import Segment, SegmentFile, manifest_hash
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType

FILE = LogFile("log-a", SourceIdentity("postgres", "7301", "shop", "2"), "2024-02-29T12:00:00Z", 17)
TRANSACTIONS = SegmentFile("transactions.parquet", 3, 30, "aa")
ROWS = SegmentFile(
    "shop.orders.1.parquet",
    4,
    41,
    "bb",
    {"name": "orders"},
    1,
    1,
    9,
    "1",
    "5",
    {"c": 4},
    2,
    1,
    (("1", "2"), ("5", "5")),
)
SEGMENT = Segment(
    "log-a",
    1,
    9,
    1,
    3,
    2,
    5,
    (TRANSACTIONS, ROWS),
    json.loads(Checkpoint(cut=5).to_json()),
    "cc",
    7,
    None,
    10,
    20,
    30,
)


class Store:
    """A bucket: a missing object is a FileNotFoundError."""

    name = "s3://bucket/shop"

    def __init__(self, **objects: bytes) -> None:
        self._objects = objects

    def _get(self, name: str) -> bytes:
        try:
            return self._objects[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def log_json(self) -> bytes:
        return self._get("log")

    def schemas(self) -> bytes:
        return self._get("schemas")

    def manifest(self, bounds: tuple[int, int]) -> bytes:
        return self._get(f"m{bounds[0]}")

    def segments(self) -> list[tuple[int, int]]:
        return [(10, 12), (1, 9), (1, 4)]


def with_store(root: Path, **objects: bytes) -> Layout:
    given: Any = Store(**objects)
    return Layout(root, given)


def test_paths_are_those_of_the_format_s_page(tmp_path: Path) -> None:
    """docs/changelog-format.md names them; other programs read them."""
    layout = Layout(tmp_path)
    found = [
        layout.log_json,
        layout.schemas,
        layout.lock,
        layout.epoch,
        layout.newest,
        layout.journals,
        layout.segments,
        layout.spools,
    ]
    names = ["log.json", "schemas.json", "lock", "epoch", "newest", "journal", "segments", "spool"]
    assert [p.name for p in found] == names
    assert layout.journal(17) == tmp_path / "journal" / "00000000000000000017.journal"
    assert layout.segment(17, 230) == tmp_path / "segments" / "00000000000000000017-00000000000000000230"
    assert layout.spool("3-1") == tmp_path / "spool" / "3-1"
    assert Layout.of(layout) is layout
    assert Layout.of(str(tmp_path)) == layout == Layout.of(tmp_path)


def test_journals_are_listed_by_their_whole_names(tmp_path: Path) -> None:
    """Other files are not journals; a log that never began has none."""
    layout = Layout(tmp_path)
    assert layout.journal_offsets() == []
    layout.journals.mkdir()
    for name in ("00000000000000000200.journal", "00000000000000000030.journal"):
        (layout.journals / name).touch()
    for name in ("00000000000000000031.journal.tmp", "31.journal", "x00000000000000000031.journal", "notes"):
        (layout.journals / name).touch()
    assert layout.journal_offsets() == [30, 200]


def test_segment_s_name_contains_its_offsets_and_other_names_are_no_segments() -> None:
    """Most segments are only listed, and never opened."""
    name = segment_name((7, 12345))
    assert segment_bounds(name) == (7, 12345)
    digits = "0" * 20
    for other in (name[:-1], name + "0", name.replace("-", "_"), "x" + name[1:], name[:-1] + "x", f".{name}.tmp", ""):
        assert segment_bounds(other) is None
    assert segment_bounds(f"{digits}{digits}-") is None
    assert segment_bounds(f"-{digits}{digits}") is None


def test_unfinished_file_is_distinguished_from_a_foreign_one(tmp_path: Path) -> None:
    """The log's own temporary file is removed at the next start; a foreign hidden file is not."""
    layout = Layout(tmp_path)
    for name in (".a.tmp", ".hidden", "visible.tmp", segment_name((1, 2))):
        (layout.segments / name).mkdir(parents=True)
    assert layout.listed_segments() == ([(1, 2)], [layout.segments / ".a.tmp"])


def test_segments_that_a_wider_one_covers_do_not_count() -> None:
    """Whatever their order, and however many it covers; neighbours do not cover each other."""
    assert widest_segments([(1, 4), (5, 9), (1, 9), (10, 12)]) == [(1, 9), (10, 12)]
    assert widest_segments([(5, 9), (10, 10), (11, 11), (5, 11), (12, 13)]) == [(5, 11), (12, 13)]
    assert widest_segments([(1, 1), (2, 2)]) == [(1, 1), (2, 2)]
    assert widest_segments([]) == []


def test_a_name_out_of_a_file_stays_in_its_directory(tmp_path: Path) -> None:
    """L28, S11: a crafted journal must not make any process read, or remove, files elsewhere."""
    for name in ("", ".", "..", "../x", "a/b", "a\0b", "/etc/passwd"):
        with pytest.raises(InvariantViolated, match="points outside"):
            Layout(tmp_path).spool(name)
    assert Layout(tmp_path).spool("...").name == "..."


# ── log.json ────────────────────────────────────────────────────────────────────────────────────────────────


def test_log_json_is_read_back_unchanged() -> None:
    """It records which log this is, and where the log begins now."""
    assert LogFile.from_json(FILE.to_json(), "log.json") == FILE
    assert json.loads(FILE.to_json()) == {
        "log_id": "log-a",
        "source": {"kind": "postgres", "system_id": "7301", "database": "shop", "timeline": "2"},
        "created": "2024-02-29T12:00:00Z",
        "first_offset": 17,
        "version": 2,
    }
    assert LogFile("a", FILE.source, "now").first_offset == 1
    for version, who in ((1, "an older cdcflow"), (3, "a newer cdcflow")):
        with pytest.raises(
            ConfigurationError, match=rf"reading somewhere: {who} wrote it \(version {version}, this one"
        ):
            LogFile.from_json(replace(FILE, version=version).to_json(), "somewhere")


def test_log_exists_when_its_log_json_is_local_or_in_the_store(tmp_path: Path) -> None:
    """A store that was never written to has none."""
    assert not Layout(tmp_path).exists()
    assert not with_store(tmp_path).exists()
    assert not with_store(tmp_path, log=b"").exists()
    assert with_store(tmp_path, log=b"{}").exists()
    (tmp_path / "log.json").touch()
    assert Layout(tmp_path).exists()
    assert with_store(tmp_path).exists()


def test_log_json_is_read_from_the_directory_first_and_then_from_the_store(tmp_path: Path) -> None:
    """And if there is no log.json, the message names the places that were searched."""
    with pytest.raises(ConfigurationError, match=f"reading the log {tmp_path}: there is no log here"):
        Layout(tmp_path).log_file()
    with pytest.raises(ConfigurationError, match="reading the log s3://bucket/shop: there is no log there") as missing:
        with_store(tmp_path).log_file()
    assert "cdcflow run" in (missing.value.remedy or "")
    stored = replace(FILE, log_id="stored").to_json().encode()
    assert with_store(tmp_path, log=stored).log_file().log_id == "stored"
    newer = replace(FILE, version=9).to_json().encode()
    with pytest.raises(ConfigurationError, match=r"reading s3://bucket/shop/log\.json: a newer"):
        with_store(tmp_path, log=newer).log_file()
    (tmp_path / "log.json").write_text(FILE.to_json())
    assert with_store(tmp_path, log=stored).log_file() == FILE


def test_shapes_are_those_of_the_directory_where_the_log_is_written(tmp_path: Path) -> None:
    """The store's may be older."""
    assert Layout(tmp_path).schemas_json() is None
    assert with_store(tmp_path).schemas_json() is None
    layout = with_store(tmp_path, schemas=b"stored")
    assert layout.schemas_json() == b"stored"
    layout.log_json.touch()
    assert layout.schemas_json() is None
    layout.schemas.write_bytes(b"here")
    assert layout.schemas_json() == b"here"


# ── manifests ───────────────────────────────────────────────────────────────────────────────────────────────


def put(layout: Layout, segment: Segment, text: str | None = None) -> bytes:
    path = layout.segment(segment.first_offset, segment.last_offset) / "segment.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(segment.to_json() if text is None else text)
    return path.read_bytes()


def test_manifest_is_read_back_unchanged(tmp_path: Path) -> None:
    """With its bytes, which the next manifest is hashed to."""
    layout = Layout(tmp_path)
    text = put(layout, SEGMENT)
    assert layout.manifest(1, 9) == (SEGMENT, text)
    compacted = replace(SEGMENT, stands_for="dd", seams=((3, 4), (4, 6)))
    assert Segment.from_json(compacted.to_json()) == compacted
    assert with_store(tmp_path / "x", m1=text).manifest(1, 9) == (SEGMENT, text)


OLDER = """{
 "log_id": "log-a", "first_offset": 1, "last_offset": 9, "first_transaction": 1, "last_transaction": 3,
 "first_cut": 2, "last_cut": 5,
 "files": [
  {"path": "transactions.parquet", "rows": 3, "bytes": 30, "sha256": "aa", "table": null, "version": 0,
   "first_offset": 0, "last_offset": 0, "key_min": null, "key_max": null, "ops": null, "partial": 0, "moved": 0},
  {"path": "shop.orders.1.parquet", "rows": 4, "bytes": 41, "sha256": "bb", "table": {"name": "orders"}, "version": 1,
   "first_offset": 1, "last_offset": 9, "key_min": "1", "key_max": "5", "ops": {"c": 4}, "partial": 2, "moved": 1}
 ],
 "checkpoint": CHECKPOINT, "previous": "cc", "epoch": 7, "previous_offset": null,
 "xid_min": 10, "xid_max": 20, "xid_newest": 30, MORE
}"""
"""As cdcflow wrote it before it knew of `key_runs`."""


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        ('"version": 2', {}),
        ('"version": 3, "stands_for": "dd", "seams": [[3, 4]]', {"stands_for": "dd", "seams": ((3, 4),)}),
    ],
)
def test_a_manifest_that_an_older_cdcflow_wrote_is_read(tmp_path: Path, more: str, changed: dict[str, Any]) -> None:
    """Where it records nothing about keys, they are unknown. A rewritten manifest is complete."""
    text = OLDER.replace("CHECKPOINT", Checkpoint(cut=5).to_json()).replace("MORE", more)
    put(Layout(tmp_path), SEGMENT, text)
    found, _ = Layout(tmp_path).manifest(1, 9)
    assert found == replace(SEGMENT, files=(TRANSACTIONS, replace(ROWS, key_runs=None)), **changed)
    assert Segment.from_json(found.to_json()) == found
    assert json.loads(found.to_json())["version"] == 4


def test_a_reader_that_does_not_know_of_runs_refuses_them_by_the_version(tmp_path: Path) -> None:
    """It checks the version first: otherwise the unknown field would only make it an invalid manifest."""
    layout = Layout(tmp_path)
    value = json.loads(put(layout, SEGMENT))
    assert value["version"] not in (2, 3), "what cdcflow read before there were runs"
    value["files"][1]["something"] = value["something"] = "unknown"
    put(layout, SEGMENT, json.dumps({**value, "version": 6}))
    with pytest.raises(ConfigurationError, match=r"a newer cdcflow wrote it \(version 6, this one reads 5\)"):
        layout.manifest(1, 9)


def test_what_was_known_of_backfills_inside_a_compacted_segment_is_kept(tmp_path: Path) -> None:
    """A segment without it is one of version 4, which an older cdcflow reads."""
    before: dict[str, object] = {"state": "done", "generation": 1, "since": 1}
    last = {"state": "done", "generation": 2, "since": 5, "size": 7}
    checkpoint: dict[str, object] = {"progress": {"tables": {"a.b": last}}}
    plain = replace(SEGMENT, first_offset=1, last_offset=9, checkpoint=checkpoint, seams=((1, 3), (2, 6)))
    assert json.loads(plain.to_json())["version"] == 4
    made = replace(plain, backfills=((3, {"a.b": None}), (6, {"a.b": before})))
    assert json.loads(made.to_json())["version"] == 5
    read = Segment.from_json(made.to_json())
    assert read == made
    assert [read.ends_around(offset) for offset in (1, 3, 4, 6, 7, 9)] == [
        (0, 3),
        (0, 3),
        (3, 6),
        (3, 6),
        (6, 9),
        (6, 9),
    ]
    known = {"state": "done", "generation": 2, "since": 5}
    assert [read.facts_at(end) for end in (9, 6, 3)] == [{"a.b": known}, {"a.b": before}, {}]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "{",
        '{"version": 2}',
        '{"version": 2, "files": 7}',
        '{"version": 4, "files": [{"key_runs": [["1"]]}]}',
    ],
)
def test_what_is_no_manifest_is_refused_without_its_content(tmp_path: Path, text: str) -> None:
    """A foreign file, or half of a manifest."""
    put(Layout(tmp_path), SEGMENT, text)
    with pytest.raises(InvariantViolated, match="not a segment's manifest"):
        Layout(tmp_path).manifest(1, 9)


@pytest.mark.parametrize("changed", [{"first_offset": 2}, {"last_offset": 8}])
def test_a_manifest_in_another_s_place_is_refused(tmp_path: Path, changed: dict[str, int]) -> None:
    """Its offsets would be taken for those in the directory's name."""
    other = replace(SEGMENT, **changed)  # type: ignore[arg-type]  # offsets only
    put(Layout(tmp_path), SEGMENT, other.to_json())
    with pytest.raises(InvariantViolated, match=f"it is the manifest of {other.first_offset}-{other.last_offset}"):
        Layout(tmp_path).manifest(1, 9)


def test_segment_describes_itself(tmp_path: Path) -> None:
    """Its size, the segment before it, the offset of a cut at which it or one of its parts ended."""
    assert SEGMENT.transactions_file is TRANSACTIONS
    assert SEGMENT.size == 71
    assert SEGMENT.before is None
    assert replace(SEGMENT, first_offset=5, previous_offset=2).before == (2, 4)
    assert SEGMENT.last_checkpoint() == Checkpoint(cut=5)
    assert [SEGMENT.offset_of(cut) for cut in (4, 5, 6)] == [None, 9, None]
    compacted = replace(SEGMENT, seams=((3, 4), (4, 6)), stands_for="dd")
    assert [compacted.offset_of(cut) for cut in (2, 3, 4, 5)] == [None, 4, 6, 9]
    text = b"its bytes"
    assert SEGMENT.is_continued_by(manifest_hash(text), text)
    assert compacted.is_continued_by("dd", text)
    assert compacted.is_continued_by(manifest_hash(text), text)
    assert not SEGMENT.is_continued_by("dd", text)
    assert not SEGMENT.is_continued_by("", text), "only the first segment continues nothing"


def chain(layout: Layout) -> list[Segment]:
    """Segments of offsets 1-3, 4-6 and 7-9."""
    found: list[Segment] = []
    for first in (1, 4, 7):
        before = first - 3 if first > 1 else None
        found.append(replace(SEGMENT, first_offset=first, last_offset=first + 2, previous_offset=before))
        put(layout, found[-1])
    return found


def firsts(layout: Layout, newest: tuple[int, int] | None, first_offset: int) -> list[int]:
    return [segment.first_offset for segment, _ in layout.manifests_back(newest, first_offset)]


def test_manifests_are_walked_back_to_the_requested_offset(tmp_path: Path) -> None:
    """A log may have tens of thousands: those before the requested offset are not read."""
    layout = Layout(tmp_path)
    chain(layout)
    for wanted, found in ((1, [7, 4, 1]), (3, [7, 4, 1]), (4, [7, 4]), (7, [7]), (9, [7]), (10, [])):
        assert firsts(layout, (7, 9), wanted) == found
    assert firsts(layout, None, 1) == []
    texts = [text for _, text in layout.manifests_back((7, 9), 1)]
    assert [Segment.from_json(text).first_offset for text in texts] == [7, 4, 1]


def test_chain_of_manifests_passes_a_compacted_segment_through_its_replacement(tmp_path: Path) -> None:
    """The one after it still names it."""
    layout = Layout(tmp_path)
    chain(layout)
    put(layout, replace(SEGMENT, first_offset=1, last_offset=6))
    (layout.segment(4, 6) / "segment.json").unlink()
    assert firsts(layout, (7, 9), 1) == [7, 1]
    (layout.segment(1, 6) / "segment.json").unlink()
    layout.segment(1, 6).rmdir()
    with pytest.raises(InvariantViolated, match=r"0004-0+6 has no segment\.json"):
        firsts(layout, (7, 9), 1)
    layout.segment(4, 6).rmdir()
    with pytest.raises(InvariantViolated, match=r"0004-0+6 is missing"):
        firsts(layout, (7, 9), 1)


# ── the numbers of shapes ───────────────────────────────────────────────────────────────────────────────────


def shape(name: str, *columns: str) -> Table:
    made = tuple(Column(c, i, ColumnType("text", pa.string())) for i, c in enumerate(("id", *columns), start=1))
    return Table(TableId("public", name), 1, made, ("id",))


def test_shapes_are_numbered_table_by_table_and_keep_their_numbers() -> None:
    """The number is in the names of files: a changed number would be another shape's."""
    a, b, wider = shape("a"), shape("b"), shape("a", "x")
    history = SchemaHistory()
    assert [history.number(t) for t in (a, b, wider, a, b, wider)] == [1, 1, 2, 1, 1, 2]
    assert (len(history), list(history)) == (3, [(a, 1), (b, 1), (wider, 2)])
    assert history.newest(a.id) == wider
    assert history.newest(TableId("public", "c")) is None
    assert history.shapes() == {a.id: {1: a, 2: wider}, b.id: {1: b}}
    assert list(history.shapes()) == [a.id, b.id]


def test_recorded_shapes_are_known_and_the_next_one_has_a_higher_number() -> None:
    """Also where lower numbers were forgotten; a shape that is recorded twice is one shape."""
    a, wider = shape("a"), shape("a", "x")
    history = SchemaHistory()
    history.learn(wider, 7)
    history.learn(wider, 7)
    history.learn(a, 3)
    assert (len(history), history.newest(a.id)) == (2, wider)
    assert list(history.shapes()[a.id]) == [3, 7], "oldest first"
    assert history.number(shape("a", "x", "y")) == 8
    found = SchemaHistory.from_json(history.to_json())
    assert found.shapes() == history.shapes()
    assert json.loads(history.to_json())["version"] == 1
    with pytest.raises(ConfigurationError, match=r"reading there: a newer cdcflow wrote it \(version 2"):
        SchemaHistory.from_json(history.to_json().replace('"version": 1', '"version": 2', 1), "there")

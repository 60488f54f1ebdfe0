"""Numbers that files of older versions contain: they never change (docs/changelog-format.md)."""

from __future__ import annotations

import pyarrow as pa

from cdcflow.capture.interleave import progress
from cdcflow.capture.interleave.progress import Progress
from cdcflow.log.files import layout
from cdcflow.log.format import framing, rows, schema_history, segment, transactions
from cdcflow.log.format.framing import FileKind, FrameKind
from cdcflow.log.format.records import HEAD
from cdcflow.log.format.topic_tail import TopicAddress
from cdcflow.model import position


def test_kinds_of_files_and_frames_have_the_numbers_of_the_format_s_page() -> None:
    """A reader of another version relies on them."""
    assert {kind.name: int(kind) for kind in FileKind} == {"JOURNAL": 1, "SPOOL": 2}
    assert {kind.name: int(kind) for kind in FrameKind} == {
        "SCHEMA": 1,
        "ROWS": 2,
        "TRANSACTIONS": 3,
        "ATTACH": 4,
        "CUT": 5,
        "PIECE": 6,
        "PROGRESS": 7,
        "FILE": 8,
    }
    assert HEAD == 0
    assert framing.MAGIC == b"cdcflow\n"


def test_versions_are_those_of_the_format_s_page() -> None:
    """A different number is a different format, which then needs an upgrade path."""
    assert (framing.FORMAT_VERSION, layout.LOG_VERSION) == (3, 2)
    assert framing.OLDER_VERSIONS == (2,)
    assert (segment.SEGMENT_VERSION, segment.OLDER_VERSIONS) == (5, (2, 3, 4))
    assert (schema_history.HISTORY_VERSION, position.CHECKPOINT_VERSION) == (1, 1)


def test_bits_and_forms_in_frames_are_those_of_the_format_s_page() -> None:
    """Columns that are omitted, forms of a message, of headers."""
    assert (rows.NO_OP, rows.NO_UNCHANGED, rows.NO_BEFORE) == (1, 2, 4)
    assert (rows._DICTIONARY, rows._DEFLATED) == (1, 2)
    assert (transactions._LZ4, transactions._ORIGINS) == (1, 2)
    assert transactions._KIND_NUMBERS == {"source": 0, "read": 1}


def test_headers_of_transactions_have_all_fields_except_the_origin() -> None:
    """A reader need not check whether a position or a time is NULL."""
    schema = segment.TRANSACTIONS_SCHEMA
    assert [field.name for field in schema if field.nullable] == ["origin"]
    assert schema.names == [
        *("number", "first_offset", "last_offset", "position", "xid"),
        *("commit_ts", "commit_clock", "kind", "origin"),
    ]
    assert schema.field("xid").type == pa.uint64()
    assert schema.field("commit_ts").type == schema.field("commit_clock").type == pa.timestamp("us", tz="UTC")


def test_file_entry_without_optional_fields_has_no_values_for_them() -> None:
    """The transactions' entry contains none of it."""
    entry = segment.SegmentFile("transactions.parquet", 3, 30, "aa")
    assert (entry.table, entry.version, entry.first_offset, entry.last_offset) == (None, 0, 0, 0)
    assert (entry.key_min, entry.key_max, entry.ops, entry.partial, entry.moved) == (None, None, None, 0, 0)
    assert entry.key_runs is None


def test_progress_is_written_with_its_version() -> None:
    """In every checkpoint."""
    assert Progress({}).to_json()["version"] == progress.PROGRESS_VERSION == 1


def test_a_topic_s_options_are_not_shown() -> None:
    """S03: there are passwords among them, and a log line shows what it is given."""
    topic = TopicAddress("broker:9092", "cdcflow-shop", {"sasl.password": "secret"})
    assert "secret" not in repr(topic)
    assert "cdcflow-shop" in repr(topic)

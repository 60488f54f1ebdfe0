"""Numbers that stand in files of older versions: they never change (docs/changelog-format.md)."""

from __future__ import annotations

from cdcflow.changelog import framing, layout, rows, schema_history, segment, transactions
from cdcflow.changelog.framing import FileKind, FrameKind
from cdcflow.changelog.records import HEAD
from cdcflow.model import position


def test_kinds_of_files_and_frames_have_the_numbers_of_the_format_s_page() -> None:
    """A reader of another version goes by them."""
    assert {kind.name: int(kind) for kind in FileKind} == {"JOURNAL": 1, "SPOOL": 2}
    assert {kind.name: int(kind) for kind in FrameKind} == {
        "SCHEMA": 1,
        "ROWS": 2,
        "TRANSACTIONS": 3,
        "ATTACH": 4,
        "CUT": 5,
        "PIECE": 6,
        "PROGRESS": 7,
    }
    assert HEAD == 0
    assert framing.MAGIC == b"cdcflow\n"


def test_versions_are_those_of_the_format_s_page() -> None:
    """Another number is another format, and then an upgrade has to say so."""
    assert (framing.FORMAT_VERSION, layout.LOG_VERSION) == (2, 2)
    assert (segment.SEGMENT_VERSION, segment.COMPACTED_VERSION) == (2, 3)
    assert (schema_history.HISTORY_VERSION, position.CHECKPOINT_VERSION) == (1, 1)


def test_bits_and_forms_in_frames_are_those_of_the_format_s_page() -> None:
    """Columns that are left out, forms of a message, of headers."""
    assert (rows.NO_OP, rows.NO_UNCHANGED, rows.NO_BEFORE) == (1, 2, 4)
    assert (rows._DICTIONARY, rows._DEFLATED) == (1, 2)
    assert (transactions._LZ4, transactions._ORIGINS) == (1, 2)
    assert transactions._KIND_NUMBERS == {"source": 0, "read": 1}

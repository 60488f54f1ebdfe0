"""Messages of pgoutput that are read one by one: their content, and that a short or long one is never half believed."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from cdcflow.errors import InvariantViolated, SourceUnavailable
from cdcflow.sources.engine.buffers import PAD
from cdcflow.sources.postgres.wire import (
    Joined,
    Relation,
    RelationColumn,
    exactly,
    frames_of,
    join_messages,
    name_of,
    relation_of,
    string_at,
    truncated_of,
)

HEADER = b"w" + bytes(24)


def test_messages_of_a_buffer_are_separated_by_their_headers() -> None:
    """A part of them is what the same messages alone would be."""
    raw = [HEADER + b"B" + bytes(20), HEADER + b"C", HEADER + b"I12345"]
    found = frames_of(join_messages(raw))
    assert len(found) == 3
    assert bytes(found.kind) == b"BCI"
    assert [found.message_at(i) for i in range(3)] == [m[25:] for m in raw]
    assert found.raw() == b"".join(raw)
    assert found.lengths.tolist() == [46, 26, 31]
    part = found.part(1, 3)
    assert (len(part), bytes(part.kind), part.raw()) == (2, b"CI", b"".join(raw[1:]))
    assert [part.message_at(i) for i in range(2)] == [b"C", b"I12345"]
    again = frames_of(join_messages([part.raw()], part.lengths))
    assert (again.start - again.start[0]).tolist() == (part.start - part.start[0]).tolist()
    assert bytes(again.kind) == b"CI"


def test_empty_buffer_has_no_messages() -> None:
    """A reader that was woken for nothing."""
    found = frames_of(join_messages([]))
    assert (len(found), found.raw(), found.lengths.tolist()) == (0, b"", [])
    none = frames_of(join_messages([HEADER + b"B"])).part(0, 0)
    assert (len(none), none.raw()) == (0, b"")


@pytest.mark.parametrize("last", [HEADER, HEADER[:1], b"", b"k" + bytes(25), bytes(26)])
def test_what_is_no_xlogdata_message_is_refused(last: bytes) -> None:
    """O10: its type would be the next message's header, or bytes after the end of the buffer."""
    for pieces in ([HEADER + b"B", last], [last, HEADER + b"B"], [last]):
        with pytest.raises(SourceUnavailable, match="not XLogData"):
            frames_of(join_messages(pieces))


@pytest.mark.parametrize("lengths", [[26], [26, 27], [53], [], [53, -1], [-1, 53], [-26, 78]])
def test_lengths_that_are_not_those_of_the_messages_are_our_fault(lengths: list[int]) -> None:
    """A new connection does not help. Some of these lengths have the right sum."""
    data = (HEADER + b"B") * 2 + bytes(PAD)
    with pytest.raises(InvariantViolated, match="lengths that are not theirs"):
        frames_of(Joined(data, np.array(lengths, np.int64)))


def relation(columns: int = 2, namespace: bytes = b"shop") -> bytes:
    body = struct.pack(">I", 16384) + namespace + b"\0orders\0" + b"f" + struct.pack(">H", columns)
    for number in range(columns):
        body += bytes([number == 0]) + f"c{number}".encode() + b"\0" + struct.pack(">Ii", 23 + number, number - 1)
    return body


def test_relation_describes_its_columns() -> None:
    """Only the lowest bit of a column's flags means anything; no namespace is pg_catalog's."""
    columns = (RelationColumn("c0", 23, -1, True), RelationColumn("c1", 24, 0, False))
    assert relation_of(relation()) == Relation(16384, "shop", "orders", "f", columns)
    assert relation_of(relation(0)) == Relation(16384, "shop", "orders", "f", ())
    assert relation_of(relation(0, b"")).namespace == "pg_catalog"
    flags = bytearray(relation(1))
    flags[19] = 0xFE
    assert not relation_of(bytes(flags)).columns[0].in_identity
    flags[19] = 0xFF
    assert relation_of(bytes(flags)).columns[0].in_identity


@pytest.mark.parametrize("columns", [0, 1, 2])
def test_a_relation_of_another_length_is_refused(columns: int) -> None:
    """O10: a wrong length must end in an error that renews the connection, not in other columns."""
    whole = relation(columns)
    for end in range(len(whole)):
        with pytest.raises(SourceUnavailable, match="cdcflow connects again"):
            relation_of(whole[:end])
    with pytest.raises(SourceUnavailable, match="continues after its columns"):
        relation_of(whole + b"\0")


def test_a_truncate_names_its_tables() -> None:
    """Their number must be that of its length."""
    body = struct.pack(">IBII", 2, 3, 7, 4_000_000_000)
    assert truncated_of(body) == (7, 4_000_000_000)
    assert truncated_of(struct.pack(">IB", 0, 0)) == ()
    for wrong in (body[:-1], body + b"\0", body[:4], b""):
        with pytest.raises(SourceUnavailable, match="Truncate message"):
            truncated_of(wrong)


def test_names_end_with_a_zero_and_are_utf_8() -> None:
    """What follows them is not theirs."""
    assert string_at(b"xxab\0rest", 2) == (b"ab", b"rest")
    assert string_at(b"\0", 0) == (b"", b"")
    for body, at in ((b"ab", 0), (b"ab\0", 3), (b"", 0)):
        with pytest.raises(SourceUnavailable, match="a name without an end"):
            string_at(body, at)
    assert name_of("ü".encode()) == "ü"
    with pytest.raises(SourceUnavailable, match="not UTF-8"):
        name_of(b"\xff")
    assert exactly(b"ab", 2) == b"ab"
    for size in (1, 3):
        with pytest.raises(SourceUnavailable, match="a message of a wrong length"):
            exactly(b"ab", size)

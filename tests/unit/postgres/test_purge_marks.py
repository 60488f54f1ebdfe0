"""Messages that name their transaction, by which a merge distinguishes purges from deletes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.postgres.message_bytes import (
    attribute,
    begin,
    commit,
    insert,
    message,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    table,
    xlog,
)
from tests.support.postgres.wire import Spools, marks, origins

from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.sources.postgres.decoders import Compiled
from cdcflow.sources.postgres.pgoutput import PURGE_PREFIX, PgoutputDecoder

T = table("t", 1, [attribute("id", 25, key=True)])


def decoder_of(compiled: Compiled | None, spool_bytes_max: int = 1 << 30) -> PgoutputDecoder:
    return PgoutputDecoder(
        describe=lambda found: T,
        open_spool=Spools(),
        spool_bytes_max=spool_bytes_max,
        binary=False,
        skip_until=0,
        compiled=compiled,
    )


def purge(name: bytes, xid: int | None = None, *, transactional: bool = True) -> bytes:
    return message(name, PURGE_PREFIX, xid, transactional=transactional)


def row(xid: int | None = None) -> bytes:
    return insert(1, [b"1"], xid)


def origin(name: bytes) -> bytes:
    return b"O" + bytes(8) + name + b"\0"


def fed(decoder: PgoutputDecoder, messages: Sequence[bytes], *, one_by_one: bool = False) -> list[StreamEvent]:
    wrapped = [xlog(m) for m in messages]
    pieces = [[m] for m in wrapped] if one_by_one else [wrapped]
    return [event for piece in pieces for event in decoder.decode(piece)]


HISTORY = [
    begin(1, 8),
    relation(T),
    row(),
    commit(8),
    begin(2, 16),
    purge(b"archive"),
    row(),
    commit(16),
    begin(3, 24),
    row(),
    purge(b""),
    commit(24),
    begin(4, 32),
    origin(b"node"),
    purge(b"first"),
    row(),
    purge(b"archive"),
    commit(32),
    begin(5, 40),
    origin(b"node"),
    row(),
    commit(40),
    begin(6, 48),
    purge(b"archive", transactional=False),
    message(b"m", b"other"),
    message(b"e1/low"),
    row(),
    commit(48),
    begin(7, 56),
    purge(b"nothing else"),
    commit(56),
]
ORIGINS = [None, "archive", "purge", "archive", "node", None]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("spool_bytes_max", [1 << 30, 0])
def test_origin_is_that_of_the_mark_anywhere_in_the_transaction(
    compiled: Compiled | None, spool_bytes_max: int, *, one_by_one: bool
) -> None:
    """A purge that is taken for a delete empties the copy, and the other way round it hides a deletion; in pieces a
    large transaction arrives, and its mark must not be lost between them."""
    found = fed(decoder_of(compiled, spool_bytes_max), HISTORY, one_by_one=one_by_one)
    assert origins(found) == ORIGINS
    assert marks(found) == ["e1/low"]


@pytest.mark.parametrize(("aborted", "expected"), [(0, "archive"), (6, "first"), (5, None)])
def test_mark_of_a_part_that_was_rolled_back_means_nothing(
    compiled: Compiled | None, aborted: int, expected: str | None
) -> None:
    """ROLLBACK TO takes the mark back with the rows; a streamed transaction has both sent before."""
    block = [stream_start(4, first=True), relation(T, 4), row(4), purge(b"first", 5), purge(b"archive", 6), row(4)]
    undone = (
        []
        if not aborted
        else [stream_abort(4, aborted)]
        if aborted == 6
        else [
            stream_abort(4, 5),
            stream_abort(4, 6),
        ]
    )
    found = fed(decoder_of(compiled), [*block, stream_stop(), *undone, stream_commit(4, 64)], one_by_one=True)
    assert origins(found) == [expected]

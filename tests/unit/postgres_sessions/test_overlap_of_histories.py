"""A slot's content, transaction by transaction, wherever the messages are cut; and which part of it cdcflow's log must
have."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pytest
from tests.support.postgres.message_bytes import begin, commit, insert, message, relation, table, truncate, xlog

from cdcflow.capture.interleave.messages import Advanced
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import HistoryLost, SourceUnavailable
from cdcflow.log.format.transactions import HEADERS_BACK
from cdcflow.sources.postgres import overlap
from cdcflow.sources.postgres.lsn import Lsn, position_of
from cdcflow.sources.postgres.overlap import TransactionsOnly, check_same
from cdcflow.sources.postgres.wire import join_messages

ORDERS, OTHER = 16384, 16390
DESCRIBED = table("orders", ORDERS, [])

# Rows of orders; rows of another table; no rows; a truncate of both; a truncate of the other; rows of both.
MESSAGES = [
    *(begin(101, 0x100), relation(DESCRIBED), insert(ORDERS, [b"1"]), insert(ORDERS, [b"2"]), commit(0x110, 11)),
    *(begin(102, 0x200), insert(OTHER, [b"1"]), commit(0x210, 12)),
    *(begin(103, 0x300), message(b"x"), commit(0x310, 13)),
    *(begin(104, 0x400), truncate([OTHER, ORDERS]), commit(0x410, 14)),
    *(begin(105, 0x500), truncate([OTHER]), commit(0x510, 15)),
    *(begin(4_000_000_000, 0x600), insert(OTHER, [b"1"]), insert(ORDERS, [b"3"]), commit(0x610, 16)),
]
GIVEN = [(101, 0x110), (102, 0x210), (104, 0x410), (105, 0x510), (4_000_000_000, 0x610)]


def read(captured: list[int] | None, *ends: int) -> tuple[list[tuple[int, str, int, bool]], list[str]]:
    """Transactions with rows, their commit times, and the reported positions. The messages arrive in pieces that end
    there."""
    decoder = TransactionsOnly(captured)
    told = []
    begins = [0, *ends]
    for first, last in zip(begins, [*ends, len(MESSAGES)], strict=True):
        if first < last:
            told += decoder.decode(join_messages([xlog(m) for m in MESSAGES[first:last]]))
    found = decoder.table()
    assert found.schema.field("commit_ts") == HEADERS_BACK.field("commit_ts")
    rows = found.set_column(2, "commit_ts", found.column("commit_ts").cast(pa.int64())).to_pylist()
    decoder.close()
    assert decoder.idle
    reached = [str(e.position) for e in told if isinstance(e, Advanced)]
    assert len(reached) == len(told)
    return [(row["xid"], row["position"], row["commit_ts"], row["counts"]) for row in rows], reached


@pytest.mark.parametrize("captured", [None, [ORDERS], [ORDERS, OTHER], [7]])
def test_each_transaction_with_rows_is_reported_wherever_the_pieces_end(captured: list[int] | None) -> None:
    """The server's messages are cut anywhere; a transaction that has half arrived is neither lost nor reported
    twice."""
    touched = {101: [ORDERS], 102: [OTHER], 104: [ORDERS, OTHER], 105: [OTHER], 4_000_000_000: [ORDERS, OTHER]}
    expected = [
        (
            xid,
            str(position_of(Lsn(end))),
            10 + (end >> 8),
            captured is None or any(oid in captured for oid in touched[xid]),
        )
        for xid, end in GIVEN
    ]
    whole, told = read(captured)
    assert whole == expected
    assert told == [str(position_of(Lsn(0x610)))], "the last commit of a piece"
    for first in range(1, len(MESSAGES)):
        assert read(captured, first)[0] == expected
        for second in range(first + 1, len(MESSAGES), 3):
            assert read(captured, first, second)[0] == expected
    every, told = read(captured, *range(1, len(MESSAGES)))
    assert every == expected
    assert told == [str(position_of(Lsn(end))) for end in (0x110, 0x210, 0x310, 0x410, 0x510, 0x610)]


def test_stream_with_an_incomplete_transaction_is_not_idle() -> None:
    """The stream must not be called quiet in the middle of one."""
    decoder = TransactionsOnly(None)
    assert (decoder.idle, decoder.gathering) == (True, False)
    decoder.decode(join_messages([xlog(m) for m in MESSAGES[:2]]))
    assert not decoder.idle
    decoder.decode(join_messages([xlog(m) for m in MESSAGES[2:5]]))
    assert decoder.idle
    assert TransactionsOnly(None).table().num_rows == 0


# ── compared with cdcflow's log ─────────────────────────────────────────────────────────────────────────────────


def headers(
    *transactions: tuple[int, int], counts: bool = False, none: tuple[int, ...] = (), later: int = 0
) -> pa.Table:
    columns: dict[str, Any] = {
        "position": pa.array([str(position_of(Lsn(end))) for _, end in transactions], pa.string()),
        "xid": pa.array([xid for xid, _ in transactions], pa.uint64()),
        "commit_ts": pa.array([later + end for _, end in transactions], HEADERS_BACK.field("commit_ts").type),
    }
    if counts:
        columns["counts"] = pa.array([xid not in none for xid, _ in transactions], pa.bool_())
    return pa.table(columns)


class Slot:
    name = "cdcflow_shop"


def compared(
    monkeypatch: pytest.MonkeyPatch, ours: pa.Table, theirs: pa.Table, since: int = 0x100, position: int = 0x400
) -> list[bool]:
    """Compare; return whether cdcflow's log was considered to reach back far enough, for the positions just before, at
    and after `since`."""
    enough: list[bool] = []
    monkeypatch.setattr(overlap, "_slot_transactions", lambda *_: theirs)

    def back(is_enough: Any) -> pa.Table:
        enough.extend(is_enough(position_of(Lsn(since + by))) for by in (-1, 0, 1))
        return ours

    given: Any = Slot()
    nothing: Any = None
    check_same(nothing, given, "p", Lsn(since), Lsn(position), back, None)
    return enough


BOTH = ((7, 0x200), (8, 0x300), (9, 0x400))


def test_the_same_transactions_are_one_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever precedes the slot or follows cdcflow's position: only one of the two can know it."""
    enough = compared(monkeypatch, headers(*BOTH), headers(*BOTH, counts=True))
    assert enough == [True, True, False], "cdcflow's log is read back to the slot's position"
    compared(monkeypatch, headers((6, 0x100), *BOTH), headers(*BOTH, (10, 0x401), counts=True))
    compared(monkeypatch, headers(*BOTH), headers((5, 0x50), (6, 0x100), *BOTH, counts=True))
    compared(monkeypatch, headers(*reversed(BOTH)), headers(*BOTH, counts=True))
    compared(monkeypatch, headers(), headers(counts=True))


@pytest.mark.parametrize(
    ("theirs", "differs"),
    [
        (((7, 0x200), (8, 0x300)), 0x400),
        (((7, 0x200), (99, 0x300), (9, 0x400)), 0x300),
        (((1, 0x101), *BOTH), 0x101),
        ((*BOTH[:2], (9, 0x3FF)), 0x3FF),
    ],
)
def test_another_transaction_up_to_our_position_is_another_history(
    monkeypatch: pytest.MonkeyPatch, theirs: tuple[tuple[int, int], ...], differs: int
) -> None:
    """The server was restored: its log continues with other changes under the same positions."""
    with pytest.raises(HistoryLost, match=f"slot cdcflow_shop gives other .* since {position_of(Lsn(differs))}"):
        compared(monkeypatch, headers(*BOTH), headers(*theirs, counts=True))


def test_another_time_of_commit_is_another_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restored server that repeats its job has the same ids and as many bytes, and commits later."""
    with pytest.raises(HistoryLost, match=f"other .* since {position_of(Lsn(0x200))}"):
        compared(monkeypatch, headers(*BOTH), headers(*BOTH, counts=True, later=1))


def test_what_touches_no_captured_table_need_not_be_in_our_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication may carry more than what is captured. What cdcflow's log has must be in it all the same."""
    more = headers(*BOTH[:1], (50, 0x250), *BOTH[1:], counts=True, none=(50,))
    compared(monkeypatch, headers(*BOTH), more)
    compared(monkeypatch, headers(*BOTH), headers(*BOTH, counts=True, none=(7, 8, 9)))
    with pytest.raises(HistoryLost):
        compared(monkeypatch, headers(*BOTH), headers(*BOTH[:1], (50, 0x250), *BOTH[1:], counts=True))


# ── what the slot gives ─────────────────────────────────────────────────────────────────────────────────────


class Stream:
    """Delivers its content, poll by poll; polled once more it would wait for messages that may never arrive."""

    made: ClassVar[list[Stream]]
    polls: ClassVar[list[list[StreamEvent]]]
    fails = False

    def __init__(self, connector: object, **options: Any) -> None:
        self.options = options
        self.closed = False
        self.left = [*self.polls]
        self.ready = True
        self.made.append(self)

    def poll(self) -> list[StreamEvent]:
        assert self.left, "more was read than the script has"
        if self.fails:
            raise SourceUnavailable("gone")
        return self.left.pop(0)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> type[Stream]:
    class Given(Stream):
        made: ClassVar[list[Stream]] = []
        polls: ClassVar[list[list[StreamEvent]]] = []

    monkeypatch.setattr(overlap, "PostgresStream", Given)
    return Given


def advanced(lsn: int) -> Advanced:
    return Advanced(position_of(Lsn(lsn)))


def given(since: int, position: int) -> pa.Table:
    nothing: Any = None
    slot: Any = Slot()
    return overlap._slot_transactions(nothing, slot, "p", Lsn(since), Lsn(position), [ORDERS])


def test_a_slot_is_read_up_to_our_position_and_no_further(stream: type[Stream]) -> None:
    """An idle server sends nothing after it, and the call would never return."""
    stream.polls = [[], [advanced(0x110), advanced(0x150)], [advanced(0x120)], [advanced(0x200)]]
    assert given(0x100, 0x200).num_rows == 0
    (made,) = stream.made
    assert (made.left, made.closed) == ([], True)
    options = {k: v for k, v in made.options.items() if k not in ("make_decoder", "check_slot")}
    assert options == {
        "slot": "cdcflow_shop",
        "publication": "p",
        "position": Lsn(0x100),
        "binary": False,
        "streaming": False,
    }
    assert made.options["check_slot"](None) is None
    assert isinstance(made.options["make_decoder"](None, False), TransactionsOnly)
    stream.polls = [[advanced(0x300)]]
    given(0x100, 0x200)


def test_nothing_is_read_where_the_slot_is_at_the_log_s_position(stream: type[Stream]) -> None:
    """There is nothing to compare."""
    assert given(0x200, 0x200).num_rows == 0
    assert all(made.closed for made in stream.made)


def test_the_stream_is_closed_whatever_ends_it(stream: type[Stream]) -> None:
    """The slot is needed again at once."""
    stream.polls = [[]]
    stream.fails = True
    with pytest.raises(SourceUnavailable):
        given(0x100, 0x200)
    assert stream.made[0].closed

"""Random histories, written as pgoutput messages one by one, decoded in columns: the rows must be those that happened.

The expected rows are built together with the messages, change by change, in plain Python.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.postgres.message_bytes import (
    UNCHANGED,
    Cell,
    attribute,
    begin,
    commit,
    delete,
    insert,
    message,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    table,
    truncate,
    update,
    xlog,
)
from tests.support.postgres.wire import Row, Spools, advanced, marks, transactions

from cdcflow.capture.interleave.messages import Committed, RowsFilled, RowVersion
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError, InvariantViolated, SourceUnavailable
from cdcflow.model.change import Run, SpooledTransaction
from cdcflow.model.table import TableId
from cdcflow.sources.postgres import pgoutput
from cdcflow.sources.postgres.decoders import Compiled
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder, Relation
from cdcflow.sources.postgres.types import DescribedTable
from cdcflow.sources.postgres.wire import join_messages

EXAMPLES = settings(
    max_examples=int(os.environ.get("CDCFLOW_EXAMPLES", "30")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

KEYED = table("keyed", 1, [attribute("id", 23, key=True), attribute("v", 25), attribute("w", 23)])
FULL = table("full", 2, [attribute("id", 23, key=True), attribute("v", 25), attribute("w", 23)], full=True)
KEYLESS = table("keyless", 3, [attribute("id", 23), attribute("v", 25), attribute("w", 23)], full=True)
TABLES = {t.table.incarnation: t for t in (KEYED, FULL, KEYLESS)}
NAMES = ("id", "v", "w")


class UnknownOid(Exception):
    """A test's `describe` got a table that it does not know."""


def decoder_of(described: dict[int, DescribedTable] | None = None, **options: Any) -> tuple[PgoutputDecoder, Spools]:
    spools = Spools()
    shapes = described or TABLES

    def describe(found: Relation) -> DescribedTable:
        if found.oid not in shapes:
            raise UnknownOid
        return shapes[found.oid]

    merged = {"spool_bytes_max": 1 << 30, "binary": False, "skip_until": 0, **options}
    return PgoutputDecoder(describe=describe, open_spool=spools, **merged), spools


def at(lsn: int) -> str:
    return f"{lsn >> 32:08X}/{lsn & 0xFFFFFFFF:08X}"


def cells(values: tuple[Any, ...]) -> list[Cell]:
    return [v if v is None or v is UNCHANGED else str(v).encode() for v in values]


def named(values: tuple[Any, ...]) -> dict[str, Any]:
    """Values as a row of the log: unchanged cells are NULL and named."""
    row = {n: None if v is UNCHANGED else v for n, v in zip(NAMES, values, strict=True)}
    missing = [n for n, v in zip(NAMES, values, strict=True) if v is UNCHANGED]
    return {**row, "_unchanged": missing} if missing else row


@dataclass
class History:
    """Writes messages and the rows that they mean."""

    random: random.Random
    messages: list[bytes] = field(default_factory=list)
    expected: list[tuple[int, str, list[Row]]] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)
    lsn: int = 2**32 - 400
    known: set[int] = field(default_factory=set)

    def change(self, xid: int | None, known: set[int]) -> tuple[list[bytes], list[Row]]:
        """One random change: its messages, and the rows it gives."""
        pick = self.random
        oid = pick.choice((1, 1, 2, 3))
        described, name = TABLES[oid], TABLES[oid].table.id.name
        first = [] if oid in known and pick.random() < 0.97 else [relation(described, xid)]
        known.add(oid)
        old = (pick.randrange(50), pick.choice(["", "x", None, "y" * 30]), pick.choice([None, 5]))
        new = (old[0] if pick.random() < 0.6 else pick.randrange(50), pick.choice(["", "new", None]), pick.randrange(9))
        kind = pick.choice("IIUUUDT" if pick.random() < 0.2 else "IIUUUD")
        if kind == "I":
            return [*first, insert(oid, cells(new), xid)], [(name, "c", named(new))]
        if kind == "T":
            others = [o for o in sorted(known) if o != oid and pick.random() < 0.3]
            rows: list[Row] = [(TABLES[o].table.id.name, "t", {}) for o in (oid, *others)]
            return [*first, truncate([oid, *others], xid)], rows
        if oid == 1:
            key = (old[0], None, None)
            gone = (name, "d", {"id": old[0], "v": None, "w": None, "_unchanged": ["v", "w"]})
            if kind == "D":
                return [*first, delete(oid, xid, key=cells(key))], [gone]
            sent = (new[0], UNCHANGED if pick.random() < 0.4 else new[1], new[2])
            if new[0] == old[0] and pick.random() < 0.8:
                return [*first, update(oid, cells(sent), xid)], [(name, "u", named(sent))]
            # The server also repeats a key that did not change, when it had to be fetched from out of line.
            out = [*first, update(oid, cells(sent), xid, key=cells(key))]
            if new[0] == old[0]:
                return out, [(name, "u", named(sent))]
            return out, [gone, (name, "c", {**named(sent), "_before": {"id": old[0]}})]
        if kind == "D":
            return [*first, delete(oid, xid, old=cells(old))], [(name, "d", named(old))]
        sent = (new[0], UNCHANGED if pick.random() < 0.4 else new[1], new[2])
        whole = (new[0], old[1] if sent[1] is UNCHANGED else new[1], new[2])
        out = [*first, update(oid, cells(sent), xid, old=cells(old))]
        if oid == 2 and new[0] == old[0]:
            return out, [(name, "u", {**named(whole), "_before": named(old)})]
        return out, [(name, "d", named(old)), (name, "c", {**named(whole), "_before": named(old)})]

    def transaction(self, xid: int) -> None:
        rows: list[Row] = []
        self.messages.append(begin(xid, self.lsn))
        for _ in range(self.random.choice((0, 1, 1, 2, 7))):
            written, meant = self.change(None, self.known)
            self.messages += written
            rows += meant
        tokens = [f"{xid}/{n}" for n in range(self.random.choice((0, 0, 0, 1, 2)))]
        self.messages += [message(token.encode()) for token in tokens]
        self.lsn += self.random.randrange(50, 90)
        self.messages.append(commit(self.lsn, xid * 1000))
        self.marked += tokens
        if rows:
            self.expected.append((xid, at(self.lsn), rows))

    def streamed(self, xids: list[int]) -> None:
        """Several transactions in alternating blocks, with sub-transactions that are rolled back."""
        rows: dict[int, list[tuple[int, Row]]] = {xid: [] for xid in xids}
        known: dict[int, set[int]] = {xid: set() for xid in xids}
        tokens: dict[int, list[tuple[int, str]]] = {xid: [] for xid in xids}
        started: set[int] = set()
        subs: dict[int, list[int]] = {xid: [xid, xid + 1, xid + 2] for xid in xids}
        for _ in range(self.random.randrange(2, 8)):
            xid = self.random.choice(xids)
            self.messages.append(stream_start(xid, first=xid not in started))
            started.add(xid)
            for _ in range(self.random.randrange(5)):
                sub = self.random.choice(subs[xid])
                written, meant = self.change(sub, known[xid])
                self.messages += written
                rows[xid] += [(sub, row) for row in meant]
                if self.random.random() < 0.1:
                    tokens[xid].append((sub, f"{sub}/{len(self.messages)}"))
                    self.messages.append(message(tokens[xid][-1][1].encode(), xid=sub))
            self.messages.append(stream_stop())
            if self.random.random() < 0.3:
                place = self.random.randrange(1, 3)
                sub, subs[xid][place] = subs[xid][place], max(subs[xid]) + 1  # an id is never used again
                self.messages.append(stream_abort(xid, sub))
                rows[xid] = [(s, row) for s, row in rows[xid] if s != sub]
                tokens[xid] = [(s, t) for s, t in tokens[xid] if s != sub]
                known[xid].clear()
        for xid in started:
            if self.random.random() < 0.3:
                self.messages.append(stream_abort(xid, xid))
                continue
            self.lsn += 64
            self.messages.append(stream_commit(xid, self.lsn, xid * 1000))
            self.known |= known[xid]
            self.marked += [token for _, token in tokens[xid]]
            if rows[xid]:
                self.expected.append((xid, at(self.lsn), [row for _, row in rows[xid]]))


def written(seed: int) -> History:
    history = History(random.Random(seed))
    for step in range(history.random.randrange(1, 9)):
        if history.random.random() < 0.35:
            history.streamed([100 * step + 10, 100 * step + 50])
        else:
            history.transaction(100 * step + 1)
    return history


@given(
    st.integers(0, 2**40),
    st.sampled_from([1, 2, 3, 7, 20, 10_000]),
    st.sampled_from([60, 300, 1 << 30]),
    st.sampled_from([0, 200, pgoutput.APART_BYTES_MIN]),
)
@EXAMPLES
def test_random_histories_are_decoded_as_they_happened(
    compiled: Compiled | None, seed: int, size: int, spool_bytes_max: int, apart: int
) -> None:
    """Whatever the mix of tables, old rows, blocks and roll-backs, wherever the polls cut it, and whether the messages
    after the end of a waiting transaction are added to it or not (P01-P33)."""
    history = written(seed)
    decoder, spools = decoder_of(compiled=compiled, spool_bytes_max=spool_bytes_max)
    messages = [xlog(m) for m in history.messages]
    events: list[StreamEvent] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pgoutput, "APART_BYTES_MIN", apart)
        for i in range(0, len(messages), size):
            events += decoder.decode(messages[i : i + size])
            assert not (decoder.idle and decoder.gathering), "an idle decoder must not wait for a transaction's end"
    assert transactions(events, spools) == history.expected
    assert marks(events) == history.marked
    assert decoder.idle
    for event in events:
        if isinstance(event, Committed) and isinstance(event.run, SpooledTransaction):
            check_spooled(event.run, next(rows for xid, _, rows in history.expected if xid == event.run.xid))
    open_ones = [s for s in spools.all.values() if not s.finished and not s.discarded]
    assert not open_ones


def check_spooled(run: SpooledTransaction, rows: list[Row]) -> None:
    """The summary of a spooled transaction must match its rows."""
    assert {t.id.name for t in run.shapes} == {name for name, _, _ in rows}
    assert {t.name for t in run.truncated} == {name for name, op, _ in rows if op == "t"}
    partial = [row["id"] for _, op, row in rows if op in "cu" and "_unchanged" in row]
    told = run.partial.get(TableId("public", "keyed"))
    assert (told.keys.column("id").to_pylist() if told else []) == partial


@given(st.integers(0, 2**40))
@EXAMPLES
def test_joined_messages_are_the_same_messages(compiled: Compiled | None, seed: int) -> None:
    """Code that reads them from the network may join them at once, without an object per message."""
    history = written(seed)
    decoder, spools = decoder_of(compiled=compiled)
    messages = [xlog(m) for m in history.messages]
    assert transactions(decoder.decode(join_messages(messages)), spools) == history.expected


@given(st.integers(0, 2**40), st.integers(0, 60))
@EXAMPLES
def test_transactions_in_the_log_already_are_dropped_whole(compiled: Compiled | None, seed: int, number: int) -> None:
    """The server sends again what cdcflow has not acknowledged; none of it may be doubled, and nothing after it lost
    (P40, L15)."""
    history = written(seed)
    reached = [0, *(int(p[:8], 16) << 32 | int(p[9:], 16) for _, p, _ in history.expected)]
    skip_until = reached[min(number, len(reached) - 1)]
    for size in (3, 10_000):
        decoder, spools = decoder_of(compiled=compiled, skip_until=skip_until, spool_bytes_max=300)
        messages = [xlog(m) for m in history.messages]
        events = [e for i in range(0, len(messages), size) for e in decoder.decode(messages[i : i + size])]
        assert transactions(events, spools) == [t for t in history.expected if t[1] > at(skip_until)]
        assert all(p > at(skip_until) for p in advanced(events))
        assert decoder.idle


@given(st.integers(0, 2**40), st.data())
@EXAMPLES
def test_garbled_bytes_end_in_an_error_that_the_pipeline_knows(
    compiled: Compiled | None, seed: int, data: st.DataObject
) -> None:
    """A flipped byte on a plain link must not crash the daemon in an unknown way, nor read beyond the buffer (O10)."""
    messages = [xlog(m) for m in written(seed).messages]
    number = data.draw(st.integers(0, len(messages) - 1))
    place = data.draw(st.integers(0, len(messages[number]) - 1))
    changed = bytearray(messages[number])
    changed[place] ^= data.draw(st.integers(1, 255))
    messages[number] = bytes(changed)
    decoder, spools = decoder_of(compiled=compiled, spool_bytes_max=300)
    with contextlib.suppress(CdcflowError, UnknownOid):
        events = [e for i in range(0, len(messages), 5) for e in decoder.decode(messages[i : i + 5])]
        transactions(events, spools)


def test_many_rows_of_one_key_change_number_as_they_must(compiled: Compiled | None) -> None:
    """Every row after a key change moves on by one; in columns that is one running sum, easily wrong by one (P09)."""
    decoder, _ = decoder_of(compiled=compiled)
    rows = [update(1, [b"%d" % (n + 1), b"v", b"1"], key=[b"%d" % n, None, None]) for n in range(100)]
    (event,) = decoder.decode([xlog(m) for m in (begin(1, 8), relation(KEYED), *rows, commit(16))])
    assert isinstance(event, Committed)
    assert isinstance(event.run, Run)
    assert event.run.batches[0].index.tolist() == list(range(200))
    assert [op for _, op, _ in transactions([event])[0][2]] == ["d", "c"] * 100


@pytest.mark.parametrize(
    ("messages", "kind", "says"),
    [
        ([b"Z"], InvariantViolated, "unknown type 'Z'"),
        ([b"b" + bytes(40)], InvariantViolated, "unknown type 'b'"),
        ([begin(1, 8), insert(9, [b"1"]), commit(16)], InvariantViolated, "table number 9"),
        ([insert(1, [b"1", None, None])], InvariantViolated, "not described"),
        ([relation(KEYED), insert(1, [b"1", None, None])], InvariantViolated, "outside of a transaction"),
        ([begin(1, 8), begin(2, 9), commit(16)], InvariantViolated, "alternate"),
        ([commit(16)], InvariantViolated, "alternate"),
        ([begin(1, 8), truncate([9]), commit(16)], InvariantViolated, "table number 9"),
        ([stream_stop()], InvariantViolated, "Stream Stop"),
        ([stream_commit(5, 16)], InvariantViolated, "was not streamed"),
        ([stream_start(5, first=False)], InvariantViolated, "Stream Start"),
        ([begin(1, 8), stream_start(5, first=True)], InvariantViolated, "inside a transaction"),
        ([stream_start(5, first=True), begin(1, 8)], InvariantViolated, "inside a stream block"),
        ([begin(1, 8), relation(KEYED), insert(1, [b"1", None]), commit(16)], SourceUnavailable, "3 columns"),
        (
            [begin(1, 8), relation(KEYED), insert(1, [b"1", None, None]) + b"x", commit(16)],
            SourceUnavailable,
            "continues after",
        ),
        ([begin(1, 8)[:-1], commit(16)], SourceUnavailable, "wrong length"),
        ([begin(1, 8), relation(KEYED)[:-3], commit(16)], SourceUnavailable, "wrong length"),
    ],
)
def test_messages_that_the_protocol_does_not_allow_are_refused_with_an_error_that_names_them(
    compiled: Compiled | None, messages: list[bytes], kind: type, says: str
) -> None:
    """Skipping what cdcflow does not understand would lose data, and the loss would go unnoticed until much later
    (O10)."""
    decoder, _ = decoder_of(compiled=compiled)
    with pytest.raises(kind, match=says):
        decoder.decode([xlog(m) for m in messages])


@pytest.mark.parametrize("length", [2**31 - 1, -1, -(2**31), 10**6])
def test_hostile_lengths_are_never_followed(compiled: Compiled | None, length: int) -> None:
    """A length on the wire is a claim; following it would read other memory, or allocate without bound (O10)."""
    good = insert(1, [b"1", b"vvvv", b"2"])
    place = good.index(b"\0\0\0\4vvvv")
    bad = good[:place] + length.to_bytes(4, "big", signed=True) + good[place + 4 :]
    decoder, _ = decoder_of(compiled=compiled)
    with pytest.raises(SourceUnavailable):
        decoder.decode([xlog(m) for m in (begin(1, 8), relation(KEYED), bad, commit(16))])


@pytest.mark.parametrize("aborted", [5, 6])
def test_the_shape_of_a_rolled_back_transaction_is_in_force_nowhere(compiled: Compiled | None, aborted: int) -> None:
    """Rows written after a roll-back have the old shape; the server sends that shape again, and only that message
    counts (P22)."""
    decoder, _ = decoder_of(compiled=compiled)
    block = [stream_start(5, first=True), relation(KEYED, 6), insert(1, [b"1", None, None], 6), stream_stop()]
    after = [begin(9, 8), insert(1, [b"1", None, None]), commit(16)]
    if aborted == 6:
        after = [stream_start(5, first=False), insert(1, [b"1", None, None], 5), stream_stop()]
    with pytest.raises(InvariantViolated, match="table number 1, which the server has not described"):
        decoder.decode([xlog(m) for m in (*block, stream_abort(5, aborted), *after)])


def test_shape_without_binary_decoders_requests_a_new_connection(compiled: Compiled | None) -> None:
    """A column of another type may be added while a binary stream runs; guessing at its bytes would be wrong (T36)."""
    odd = table("keyed", 1, [attribute("id", 23, key=True), attribute("v", 25), attribute("w", 869)])
    decoder, _ = decoder_of({1: odd}, compiled=compiled, binary=True)
    with pytest.raises(SourceUnavailable, match=r"public\.keyed"):
        decoder.decode([xlog(begin(1, 8)), xlog(relation(KEYED)), xlog(commit(16))])


def test_empty_transactions_only_move_the_position(compiled: Compiled | None) -> None:
    """Before 15 the server sends every transaction, also those that touch no captured table; they are not in the
    log."""
    decoder, _ = decoder_of(compiled=compiled)
    events = decoder.decode([xlog(m) for n in range(5) for m in (begin(n, 8), commit(100 + n))])
    assert not transactions(events)
    assert advanced(events) == [at(104)]


def test_a_row_of_1600_columns_is_decoded_in_bounded_pieces(
    compiled: Compiled | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As wide as a table can be; the places of its cells must not take many times the memory of the row (P69)."""
    monkeypatch.setattr(pgoutput, "_CELLS_AT_ONCE", 16_000)
    wide = table("wide", 1, [attribute(f"c{n}", 23, key=n == 0) for n in range(1600)])
    rows = [insert(1, [b"%d" % n, *(None if c % 3 else b"7" for c in range(1599))]) for n in range(25)]
    decoder, _ = decoder_of({1: wide}, compiled=compiled)
    (event,) = decoder.decode([xlog(m) for m in (begin(1, 8), relation(wide), *rows, commit(16))])
    assert isinstance(event, Committed)
    assert isinstance(event.run, Run)
    (batch,) = event.run.batches
    assert batch.index.tolist() == list(range(25))
    assert batch.rows.column("c0").to_pylist() == list(range(25))
    assert batch.rows.column("c1").to_pylist() == [7] * 25
    assert batch.rows.column("c1598").null_count == 25


def test_shape_that_changes_between_two_rows_applies_after_its_place(compiled: Compiled | None) -> None:
    """ALTER COLUMN TYPE between two rows of one transaction; the bytes alone do not show their shape (P22)."""
    texts = table("keyed", 1, [attribute("id", 23, key=True), attribute("v", 25), attribute("w", 25)])
    shapes = iter([KEYED, texts])
    decoder = PgoutputDecoder(
        describe=lambda _: next(shapes),
        open_spool=Spools(),
        spool_bytes_max=1 << 30,
        binary=False,
        skip_until=0,
        compiled=compiled,
    )
    row = insert(1, [b"1", b"v", b"7"])
    (event,) = decoder.decode(
        [xlog(m) for m in (begin(1, 8), relation(KEYED), row, relation(texts), row, row, commit(64))]
    )
    assert isinstance(event, Committed)
    assert isinstance(event.run, Run)
    assert [(b.table, b.index.tolist(), b.rows.column("w").to_pylist()) for b in event.run.batches] == [
        (KEYED.table, [0], [7]),
        (texts.table, [1, 2], ["7", "7"]),
    ]


def test_old_row_of_a_table_whose_partitions_send_only_keys_is_a_key(compiled: Compiled | None) -> None:
    """The server marks it as a whole row, because its table has REPLICA IDENTITY FULL, and leaves NULL in the rest."""
    told = table("keyed", 1, [attribute("id", 23, key=True), attribute("v", 25), attribute("w", 23)], full=True)
    decoder, _ = decoder_of({1: KEYED}, compiled=compiled)
    rows = [
        update(1, [b"1", UNCHANGED, b"8"], old=[b"1", None, None]),
        update(1, [b"5", UNCHANGED, b"8"], old=[b"4", None, None]),
        delete(1, old=[b"2", None, None]),
    ]
    (event,) = decoder.decode([xlog(m) for m in (begin(1, 8), relation(told), *rows, commit(64))])
    assert isinstance(event, Committed)
    assert isinstance(event.run, Run)
    (batch,) = event.run.batches
    assert batch.rows.column("_op").to_pylist() == ["u", "d", "c", "d"]
    assert batch.rows.column("id").to_pylist() == [1, 4, 5, 2]
    assert batch.rows.column("_unchanged").to_pylist() == [["v"], ["v", "w"], ["v"], ["v", "w"]]


def test_name_that_is_not_captured_brings_no_rows_after_its_place(compiled: Compiled | None) -> None:
    """RENAME of a captured table to a name that the settings exclude, and back: rows and truncates in between are not
    in the log, in one transaction or in a streamed one."""
    away = table("_away", 1, [attribute("id", 23, key=True), attribute("v", 25), attribute("w", 23)])
    rows = [
        *(relation(KEYED), insert(1, [b"1", b"a", b"7"])),
        *(relation(away), insert(1, [b"2", b"b", b"7"]), truncate([1])),
        *(relation(KEYED), insert(1, [b"3", b"c", b"7"])),
    ]
    described = {"keyed": KEYED, "_away": None}
    decoder = PgoutputDecoder(
        describe=lambda told: described[told.name],
        open_spool=(spools := Spools()),
        spool_bytes_max=1 << 30,
        binary=False,
        skip_until=0,
        compiled=compiled,
    )
    events = decoder.decode([xlog(m) for m in (begin(1, 8), *rows, commit(64))])
    again = [relation(KEYED, 5), insert(1, [b"1", b"a", b"7"], 5), relation(away, 5), insert(1, [b"2", b"b", b"7"], 5)]
    again += [truncate([1], 5), relation(KEYED, 5), insert(1, [b"3", b"c", b"7"], 5)]
    streamed = [stream_start(5, first=True), *again, stream_stop(), stream_commit(5, 96)]
    events += decoder.decode([xlog(m) for m in streamed])
    found = [[row[2]["id"] for row in rows] for _, _, rows in transactions(events, spools)]
    assert found == [[1, 3], [1, 3]]


def test_closed_decoder_removes_its_spools(compiled: Compiled | None) -> None:
    """A connection that breaks in the middle of a large transaction must not leave its rows on disk."""
    decoder, spools = decoder_of(compiled=compiled, spool_bytes_max=100)
    decoder.decode(
        [xlog(stream_start(5, first=True)), xlog(relation(KEYED, 5)), xlog(insert(1, [b"1", None, None], 5))]
    )
    decoder.decode([xlog(stream_stop())])
    rows = [xlog(insert(1, [b"1", b"x" * 200, None])) for _ in range(3)]
    decoder.decode([xlog(begin(9, 8)), xlog(relation(KEYED)), *rows])
    assert len(spools.all) == 2
    decoder.close()
    assert decoder.idle
    assert all(spool.discarded for spool in spools.all.values())


def test_large_transaction_that_widens_its_key_reports_all_its_partial_keys(compiled: Compiled | None) -> None:
    """ALTER COLUMN TYPE in the middle of a streamed transaction; its partial rows are read again all the same (P22)."""
    wider = table("keyed", 1, [attribute("id", 20, key=True), attribute("v", 25), attribute("w", 23)])
    shapes = iter([KEYED, wider] * 2)  # described again when it is committed
    spools = Spools()
    decoder = PgoutputDecoder(
        describe=lambda _: next(shapes),
        open_spool=spools,
        spool_bytes_max=1 << 30,
        binary=False,
        skip_until=0,
        compiled=compiled,
    )
    block = [stream_start(5, first=True)]
    for key in (b"1", b"9000000000"):
        block += [relation(KEYED, 5), update(1, [key, UNCHANGED, b"1"], 5)]
    (event,) = decoder.decode([xlog(m) for m in (*block, stream_stop(), stream_commit(5, 64))])
    assert isinstance(event, Committed)
    assert isinstance(event.run, SpooledTransaction)
    assert event.run.shapes == {KEYED.table, wider.table}
    assert event.run.partial[TableId("public", "keyed")].keys.to_pydict() == {"id": [1, 9_000_000_000]}


def _next(shapes: Iterator[DescribedTable], _: Relation) -> DescribedTable:
    return next(shapes)


def test_table_that_is_described_differently_at_the_commit_is_read_again(compiled: Compiled | None) -> None:
    """Until a streamed transaction is committed, the catalog lacks the columns that it has added to a table."""
    columns = [attribute("id", 23, key=True), attribute("v", 25), replace(attribute("w", 23), number=9)]
    moved = table("keyed", 1, columns)
    for at_commit in (moved, KEYED):
        shapes = iter([KEYED, at_commit])
        decoder = PgoutputDecoder(
            describe=functools.partial(_next, shapes),
            open_spool=Spools(),
            spool_bytes_max=1 << 30,
            binary=False,
            skip_until=0,
            compiled=compiled,
        )
        block = [stream_start(5, first=True), relation(KEYED, 5), insert(1, [b"1", b"a", b"2"], 5), stream_stop()]
        assert decoder.decode([xlog(m) for m in block]) == []
        *filled, committed = decoder.decode([xlog(stream_commit(5, 64))])
        assert isinstance(committed, Committed)
        assert [event.table for event in filled if isinstance(event, RowsFilled)] == (
            [KEYED.table.id] if at_commit is moved else []
        )


def test_table_that_a_hidden_transaction_changed_is_read_again() -> None:
    """The transaction is committed, but the catalog does not show it yet."""
    asked = []

    def hidden(xid: int, oids: Collection[int]) -> Collection[int]:
        asked.append((xid, tuple(oids)))
        return oids if xid == 8 else ()

    decoder, _ = decoder_of(hidden=hidden)
    messages = []
    for xid in (7, 8):
        messages += [begin(xid, xid * 100), relation(KEYED), insert(1, [b"%d" % xid, b"a", b"2"]), commit(xid * 100)]
    filled, committed = decoder.decode([xlog(m) for m in messages])
    assert asked == [(7, (1,)), (8, (1,))]
    assert isinstance(filled, RowsFilled)
    assert (filled.table, filled.version) == (KEYED.table.id, None)
    assert isinstance(committed, Committed)


def test_table_to_be_read_again_is_not_lost_with_an_error_after_it() -> None:
    """The stream begins again with values as text: the version that showed the change is already replaced."""
    version = RowVersion(KEYED.table.id, "1", "2", changed=True)

    def changed(oid: int, _: int) -> RowVersion | None:
        if oid == 1:
            return version
        raise KeyError(oid)

    decoder, _ = decoder_of(changed=changed)
    with pytest.raises(KeyError):
        decoder.decode([xlog(m) for m in (begin(7, 100), relation(KEYED), relation(FULL), commit(100))])
    assert [filled.version for filled in decoder.take_filled()] == [version]
    assert decoder.take_filled() == []


def test_rows_that_a_statement_changed_are_reported_before_a_row_in_the_new_shape() -> None:
    """No position after that row may become durable without the request to read the table again."""
    version = RowVersion(KEYED.table.id, "1", "2", changed=True)
    decoder, _ = decoder_of(changed=lambda oid, _: version if oid == 1 else None)
    messages = [begin(7, 100), relation(FULL), relation(KEYED), insert(1, [b"1", b"a", b"2"]), commit(100)]
    filled, committed = decoder.decode([xlog(m) for m in messages])
    assert isinstance(filled, RowsFilled)
    assert filled.version == version
    assert isinstance(committed, Committed)


def test_partition_is_reported_with_the_table_that_publishes_its_rows() -> None:
    """A partition that was dropped since is in no catalog: only an earlier message shows to which table its rows
    belong."""
    asked: list[tuple[int, int]] = []
    decoder, _ = decoder_of(changed=lambda oid, partition: asked.append((oid, partition)))
    row = insert(1, [b"1", b"a", b"2"])
    decoder.decode([xlog(m) for m in (begin(7, 100), relation(FULL), relation(KEYED), row, commit(100))])
    block = [stream_start(8, first=True), relation(FULL, 8), relation(KEYLESS, 8), stream_stop(), stream_commit(8, 200)]
    decoder.decode([xlog(m) for m in block])
    assert asked == [(2, 0), (1, 0), (2, 1), (2, 0), (1, 2), (3, 0), (2, 3)]


def test_statement_of_a_streamed_transaction_is_reported_with_its_commit() -> None:
    """Before a transaction is committed, no catalog shows what it did to a table's rows."""
    found: list[RowVersion] = []
    decoder, _ = decoder_of(changed=lambda oid, _: found.pop() if oid == 1 and found else None)
    block = [stream_start(7, first=True), relation(KEYED, 7), insert(1, [b"1", b"a", b"2"], 7), stream_stop()]
    assert decoder.decode([xlog(m) for m in block]) == []
    found.append(RowVersion(KEYED.table.id, "1", "2", changed=True))
    filled, committed = decoder.decode([xlog(stream_commit(7, 100))])
    assert isinstance(filled, RowsFilled)
    assert isinstance(committed, Committed)

"""Catching up through SQL: the same events as the stream, whatever happens between the windows."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import psycopg
import pytest
from tests.servers.postgres import Database
from tests.support.polling import wait_until
from tests.support.postgres.controlled_source import SLOT, Capture, MakeCapture, Row, rows_of

from cdcflow.capture.interleave.messages import Committed, MarkSeen
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.errors import HistoryLost, SourceUnavailable
from cdcflow.model.change import Run, SpooledTransaction
from cdcflow.model.position import Token
from cdcflow.sources.postgres import copy_reader
from cdcflow.sources.postgres.catch_up import CatchingUp, Windows
from cdcflow.sources.postgres.copy_reader import CopyReader, Kind
from cdcflow.sources.postgres.lsn import START, Lsn, lsn_of, position_of
from cdcflow.sources.postgres.stream import PostgresStream, position_after
from cdcflow.sources.postgres.wire import Joined

pytestmark = pytest.mark.postgres

SMALL = Windows(backlog_min=1, rest_min=1, messages_max=40, advance_min=1)

SCHEMA = """
CREATE TABLE a (id int PRIMARY KEY, v text, wide text);
ALTER TABLE a ALTER wide SET STORAGE EXTERNAL;
CREATE TABLE b (id int PRIMARY KEY, n numeric(10,2));
ALTER TABLE b REPLICA IDENTITY FULL;
CREATE TABLE elsewhere (id int PRIMARY KEY);
"""
CAPTURED = ["public.a", "public.b"]


def write_history(database: Database, seed: int, transactions: int) -> None:
    """Changes of every kind, also rolled-back ones and transactions that touch no captured table."""
    dice = random.Random(seed)
    with database.session(autocommit=False) as session:
        for number in range(transactions):
            for _ in range(dice.choice((1, 1, 3, 30))):
                change(session, dice, number)
            if dice.random() < 0.15:
                session.rollback()
            else:
                session.commit()


def change(session: psycopg.Connection[Any], dice: random.Random, number: int) -> None:
    key = dice.randint(1, 60)
    match dice.randint(0, 7):
        case 0:
            session.execute(
                "INSERT INTO a VALUES (%s, %s, repeat('w', 3000)) ON CONFLICT DO NOTHING", (key, str(number))
            )
        case 1:
            session.execute("UPDATE a SET v = %s WHERE id = %s", (str(number), key))
        case 2:
            session.execute("DELETE FROM a WHERE id = %s", (key,))
        case 3:
            session.execute(
                "UPDATE a SET id = id + 100 WHERE id = %s AND NOT EXISTS (SELECT FROM a WHERE id = %s)",
                (key, key + 100),
            )
        case 4:
            session.execute("INSERT INTO b VALUES (%s, 1.5) ON CONFLICT (id) DO UPDATE SET n = b.n + 1", (key,))
        case 5:
            session.execute("INSERT INTO elsewhere VALUES (%s) ON CONFLICT DO NOTHING", (key,))
        case 6:
            session.execute("SAVEPOINT s")
            session.execute("UPDATE b SET n = -1")
            session.execute("ROLLBACK TO s")
        case _:
            session.execute("TRUNCATE b" if key == 1 else "UPDATE b SET n = n + 1")


def followed(
    capture: Capture, token: Token, *, durable: Callable[[StreamEvent], bool] = lambda _: True
) -> list[StreamEvent]:
    """Everything up to a mark, each event acknowledged on arrival where `durable` says to."""
    found: list[StreamEvent] = []
    stream = capture.stream

    def has_mark() -> bool:
        events = stream.poll()
        for event in events:
            if durable(event):
                stream.acknowledge(position_after(event))
        found.extend(events)
        return any(isinstance(e, MarkSeen) and e.token == token for e in events)

    wait_until(has_mark, "the mark", pause_max_s=0.002)
    return found


def told(events: Sequence[StreamEvent]) -> list[tuple[int, str, list[Row]]]:
    """Transactions as (id, position, rows), however they were grouped into runs."""
    out = []
    for event in events:
        if isinstance(event, Committed) and isinstance(event.run, Run):
            run = event.run
            rows = rows_of(run)
            for i in range(run.transactions):
                first = int(run.ends[i - 1]) if i else 0
                out.append((int(run.xid[i]), run.position[i].as_py(), rows[first : int(run.ends[i])]))
    return out


def windows_of(stream: Stream) -> int:
    assert isinstance(stream, CatchingUp)
    return stream.windows


def pass_a_window(stream: Stream) -> None:
    while windows_of(stream) < 1:
        for event in stream.poll():
            stream.acknowledge(position_after(event))


@pytest.mark.spread(1)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_windows_deliver_the_same_as_the_stream(database: Database, make_capture: MakeCapture, seed: int) -> None:
    """P40, L15: every transaction once, whole, in commit order, and the change-over to the stream is no seam."""
    database.execute(SCHEMA)
    one = make_capture(database, tables=CAPTURED, windows=SMALL)
    other = make_capture(database, tables=CAPTURED, slot="other", publication="other", catch_up="never")
    for capture in (one, other):
        capture.prepare()
    write_history(database, seed, 120)
    token = Token("1/1/low")
    for capture in (one, other):
        capture.chunks.write_mark(token)
    caught_up, streamed = followed(one, token), followed(other, token)
    assert told(caught_up) == told(streamed)
    assert len(told(streamed)) > 50
    assert windows_of(one.stream) > 5
    write_history(database, seed + 100, 20)  # the stream has already replaced the windows
    more = Token("1/2/low")
    for capture in (one, other):
        capture.chunks.write_mark(more)
    assert told(followed(one, more)) == told(followed(other, more))


def test_windows_continue_while_nothing_is_durable_and_the_slot_stays(
    database: Database, make_capture: MakeCapture
) -> None:
    """An open backfill window waits for a mark at the log's end; waiting for its cut would never end. The source must
    keep everything in the meantime: after a crash now all of it is needed again. O01.
    """
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    before = capture.prepare()
    assert before.position is not None
    write_history(database, 4, 60)
    token = Token("1/1/low")
    capture.chunks.write_mark(token)
    found = followed(capture, token, durable=lambda _: False)
    xids = [xid for xid, _, _ in told(found)]
    assert len(xids) == len(set(xids)) > 20
    assert windows_of(capture.stream) > 2
    assert confirmed(database) <= lsn_of(before.position)


def test_slot_follows_what_is_durable_and_never_passes_it(database: Database, make_capture: MakeCapture) -> None:
    """P48: of the windows that were read only a part is durable; the slot may reach that far and no further."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    capture.prepare()
    write_history(database, 12, 60)
    stream = capture.stream
    assert isinstance(stream, CatchingUp)
    durable = START
    while durable == START:
        durable = max((lsn_of(position_after(event)) for event in stream.poll()), default=START)
    stream.acknowledge(position_of(durable))
    followed_after = 0  # windows
    while stream.windows < 10:
        stream.poll()
        if not followed_after and confirmed(database) == durable:
            followed_after = stream.windows
    assert 0 < followed_after < 10
    assert confirmed(database) == durable


def confirmed(database: Database) -> Lsn:
    rows = database.execute(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{SLOT}'")
    return Lsn.parse(rows[0][0])


def test_server_without_room_for_a_copy_of_the_slot_gives_the_stream(
    database: Database, make_capture: MakeCapture
) -> None:
    """A backlog is read in any case, if slower."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    capture.prepare()
    write_history(database, 13, 30)
    database.execute(
        "SELECT pg_create_physical_replication_slot('taken_' || i) FROM generate_series(1, "
        "current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots)) i"
    )
    stream = capture.stream
    database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ~ '^taken'")
    token = Token("1/1/low")
    capture.chunks.write_mark(token)
    assert len(told(followed(capture, token))) > 15
    assert windows_of(stream) == 0


def test_slot_that_a_dead_daemon_still_holds_is_advanced_later(database: Database, make_capture: MakeCapture) -> None:
    """P46: the server notices only after a while; until then the windows continue, and then the stream waits."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    capture.prepare()
    write_history(database, 18, 60)
    token = Token("1/1/low")
    capture.chunks.write_mark(token)
    stream = capture.stream
    with psycopg.connect(f"{database.url}?replication=database", autocommit=True) as dead:
        options = f"proto_version '2', publication_names '{SLOT}'"
        dead.pgconn.send_query(f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 ({options})".encode())
        held = f"SELECT active_pid IS NOT NULL FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        wait_until(lambda: database.execute(held)[0][0], "the slot to be held")
        found: list[StreamEvent] = []
        while windows_of(stream) < 5:
            for event in stream.poll():
                stream.acknowledge(position_after(event))
                found.append(event)
        threading.Timer(1.0, dead.pgconn.finish).start()
        found += followed(capture, token)
    xids = [xid for xid, _, _ in told(found)]
    assert len(xids) == len(set(xids)) > 30


def test_failover_slot_is_read_as_a_stream(database: Database, make_capture: MakeCapture) -> None:
    """It gives nothing that a standby does not have yet, and a temporary copy of it would. From PostgreSQL 17."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL, failover=True)
    capture.prepare()
    write_history(database, 14, 30)
    has_failover = int(database.execute("SHOW server_version_num")[0][0]) >= 170000
    assert isinstance(capture.stream, PostgresStream if has_failover else CatchingUp)


@pytest.mark.spread(1)
def test_far_restart_position_stays_with_the_stream(database: Database, make_capture: MakeCapture) -> None:
    """P35: an open transaction holds the place from which every window would be decoded again."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=replace(SMALL, bytes_max=2_500))
    capture.prepare()
    with database.session(autocommit=False) as session:
        session.execute("INSERT INTO a VALUES (1000, 'open', NULL)")
        write_history(database, 5, 60)
        first = Token("1/1/low")
        capture.chunks.write_mark(first)
        reached = position_after(followed(capture, first)[-1])
        while database.execute(f"SELECT confirmed_flush_lsn < '{reached}' FROM pg_replication_slots")[0][0]:
            capture.stream.poll()  # which still reports it
        write_history(database, 6, 60)
        session.commit()
    capture.stream.close()
    again = make_capture(database, tables=CAPTURED, windows=replace(SMALL, bytes_max=2_500))
    again.prepare(replace(capture.checkpoint, position=reached))
    (gap,) = database.execute("SELECT confirmed_flush_lsn - restart_lsn FROM pg_replication_slots")[0]
    assert gap > 10_000
    assert isinstance(again.stream, PostgresStream)


def test_slot_that_vanishes_between_windows_is_history_lost(database: Database, make_capture: MakeCapture) -> None:
    """P36, P37: changes after the window are lost, and none of them is skipped silently."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    capture.prepare()
    write_history(database, 7, 60)
    pass_a_window(capture.stream)
    database.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")
    with pytest.raises(HistoryLost) as lost:
        followed(capture, Token("1/9/low"))
    assert "accept-history-loss" in str(lost.value.remedy)


def test_slot_that_another_process_moved_between_windows_is_history_lost(
    database: Database, make_capture: MakeCapture
) -> None:
    """P38: another process received changes."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    capture.prepare()
    write_history(database, 8, 60)
    pass_a_window(capture.stream)
    database.execute(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_flush_lsn())")
    with pytest.raises(HistoryLost):
        followed(capture, Token("1/9/low"))


def test_column_without_a_binary_decoder_in_a_window_turns_to_text(
    database: Database, make_capture: MakeCapture
) -> None:
    """The window is requested again with values as text; what was delivered of it is not repeated."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    capture.prepare()
    capture.source.tables()
    write_history(database, 9, 30)
    checkpoint = capture.checkpoint
    stream = capture.stream  # requests binary values: no column prevents it yet
    database.execute("ALTER TABLE a ADD r int4range DEFAULT '[1,5)'")
    write_history(database, 10, 30)
    token = Token("1/1/low")
    capture.chunks.write_mark(token)
    found = told(followed(capture, token))
    xids = [xid for xid, _, _ in found]
    assert len(xids) == len(set(xids)) > 20
    assert any(row.get("r") == "[1,5)" for _, _, rows in found for row in rows)
    assert checkpoint.position is not None
    assert stream is capture.stream


def test_slot_that_another_process_moved_is_found_when_it_is_copied_again(
    database: Database, make_capture: MakeCapture
) -> None:
    """P38: a second copy, here for values as text, begins at the slot's position. Continuing there would silently skip
    what another process received.
    """
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    capture.prepare()
    write_history(database, 15, 40)
    stream = capture.stream  # requests binary values: no column prevents it yet
    database.execute("ALTER TABLE a ADD r int4range DEFAULT '[1,5)'")
    write_history(database, 16, 40)
    pass_a_window(stream)
    database.execute(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_flush_lsn())")
    write_history(database, 17, 40)
    with pytest.raises(HistoryLost):
        followed(capture, Token("1/9/low"))


def test_huge_transaction_in_a_window_is_spooled(database: Database, make_capture: MakeCapture) -> None:
    """P30: memory does not depend on its size here either."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL, spool_bytes_max=100_000)
    capture.prepare()
    database.execute("INSERT INTO b SELECT i, i FROM generate_series(1, 50000) i")
    token = Token("1/1/low")
    capture.chunks.write_mark(token)
    (run,) = [e.run for e in followed(capture, token) if isinstance(e, Committed)]
    assert isinstance(run, SpooledTransaction)
    assert run.rows == 50_000


def test_transaction_that_the_server_may_not_keep_in_a_file_is_streamed(
    database: Database, make_capture: MakeCapture
) -> None:
    """The server spools a window into a temporary file, whose size an administrator may limit; a stream needs none."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    capture.prepare()
    write_history(database, 21, 10)
    database.execute("TRUNCATE b; INSERT INTO b SELECT i, i FROM generate_series(1, 20000) i")
    database.execute(f"ALTER DATABASE {database.name} SET temp_file_limit = '64kB'")
    database.execute(f"ALTER DATABASE {database.name} SET work_mem = '512kB'")
    token = Token("1/1/low")
    capture.chunks.write_mark(token)
    found = told(followed(capture, token))
    assert len(found[-1][2]) == 20_000 + sum(r["_op"] == "t" for r in found[-1][2])
    assert 0 < windows_of(capture.stream) < 50
    assert len({xid for xid, _, _ in found}) == len(found)


def test_position_moves_while_only_other_tables_change(database: Database, make_capture: MakeCapture) -> None:
    """P33: a backlog of other tables is skipped, once, and the slot releases it."""
    database.execute(SCHEMA)
    capture = make_capture(database, tables=CAPTURED, windows=SMALL)
    capture.prepare()
    database.execute("INSERT INTO elsewhere SELECT generate_series(1, 5000)")
    (end,) = database.execute("SELECT pg_current_wal_flush_lsn()::text")[0]
    token = Token("1/1/low")
    stream = capture.stream
    capture.chunks.write_mark(token)
    found = followed(capture, token)
    assert not told(found)
    assert max(lsn_of(position_after(e)) for e in found) >= Lsn.parse(end)
    assert windows_of(stream) >= 1


def test_windows_and_stream_deliver_the_same_without_compiled_code(
    database: Database, make_capture: MakeCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O10: an install without a compiler reads through psycopg, in windows and from the stream."""
    database.execute(SCHEMA)
    captures = [
        make_capture(database, tables=CAPTURED, slot=name, publication=name, windows=windows)
        for name, windows in (("compiled", SMALL), ("plain", SMALL))
    ]
    for capture in captures:
        capture.prepare()
    write_history(database, 11, 60)
    found = []
    for number, capture in enumerate(captures):
        if number:
            monkeypatch.setattr(copy_reader, "_functions", lambda: None)
        token = Token("1/1/low")
        capture.chunks.write_mark(token)
        found.append(told(followed(capture, token)))
        assert windows_of(capture.stream) > 2
    assert found[0] == found[1]


def messages_of(found: Joined) -> list[bytes]:
    ends = np.cumsum(found.lengths).tolist()
    return [found.data[a:b] for a, b in pairwise([0, *ends])]


@pytest.mark.parametrize("kind", ["rows", "window"])
def test_compiled_reader_and_psycopg_receive_the_same(database: Database, kind: Kind) -> None:
    """O10: the compiled way, and the one through psycopg that serves where nothing was built."""
    database.execute(
        "CREATE TABLE m AS SELECT decode(repeat(md5(i::text), i % 40), 'hex') AS b FROM generate_series(1, 5000) i"
    )
    found = {}
    for plain in (True, False):
        with database.connect(autocommit=True) as connection:
            pg = connection.pgconn
            pg.exec_(b"COPY (SELECT b FROM m) TO STDOUT (FORMAT binary)")
            taker = CopyReader(pg, kind, plain=plain)
            assert taker.is_compiled == (copy_reader.compiled is not None and not plain)
            first, is_whole = taker.take_all(1000)
            assert not is_whole
            assert len(first.data) < 2000, "a bound, one message and the padding"
            rest, is_whole = taker.take_all()
            assert is_whole
            found[plain] = [*messages_of(first), *messages_of(rest)]
            while pg.get_result() is not None:
                pass
    assert found[True] == found[False]
    assert len(found[True]) >= 5000


def test_both_ways_refuse_a_row_that_is_no_message(database: Database) -> None:
    """O10: two columns where one message should be."""
    for plain in (True, False):
        with database.connect(autocommit=True) as connection:
            connection.pgconn.exec_(b"COPY (SELECT 1, 2) TO STDOUT (FORMAT binary)")
            with pytest.raises(SourceUnavailable, match="a row that is not one message"):
                CopyReader(connection.pgconn, "window", plain=plain).take_all()
            connection.close()

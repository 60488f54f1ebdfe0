"""XA transactions that are prepared: what they mean for whole tables counts once they are committed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.mysql.binlog_bytes import Log, image
from tests.support.mysql.binlog_decoder import FLAVORS, Reader, T, decoded, one, reader, rows_of
from tests.support.postgres.wire import transactions

from cdcflow.capture.interleave.messages import ChangesRefused, Committed, RowsFilled
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.position import BinlogPosition

XID, OTHER = b"\x01", b"\x02"


def prepare(log: Log, xid: bytes, write: Callable[[], None]) -> None:
    log.gtid()
    log.query(f"XA START X'{xid.hex()}',X'',1", "")
    write()
    log.query(f"XA END X'{xid.hex()}',X'',1", "")
    log.xa_prepare(xid)


def insert_without_key(log: Log) -> None:
    log.rows("i", T, image(T, (7, "x"), [1]), after=[1])


def write_elsewhere(log: Log) -> None:
    """A statement of a session with `binlog_format = STATEMENT`, whose trigger may change a captured table."""
    log.insert(T, (7, "x"))
    log.query("UPDATE x SET v = 1", "else")


def reported(found: Reader, begin: int = 0) -> list[str]:
    """What was reported about the captured table, in order, since event number `begin`."""
    out: list[str] = []
    for event in found.events[begin:]:
        match event:
            case ChangesRefused():
                out.append("refused")
            case RowsFilled(possible=True):
                out.append("suspected")
            case Committed():
                out.append("rows")
    return out


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("write", "expected"), [(insert_without_key, ["refused"]), (write_elsewhere, ["suspected", "rows"])]
)
def test_effects_of_a_prepared_transaction_follow_its_commit(
    flavor: Flavor, write: Callable[[Log], None], expected: list[str], is_restarted: bool
) -> None:
    """M45, M07: a table that is read again before the commit lacks what the transaction changed, and no rows of it may
    follow."""
    log = Log(flavor)
    one(log, 1)
    prepare(log, XID, lambda: write(log))
    prepare(log, OTHER, lambda: write(log))
    one(log, 2)
    sent = log.dump()
    found = decoded(log)
    assert reported(found) == ["rows", "rows"]
    position = transactions(found.events, found.spools)[-1][1]
    assert BinlogPosition.parse(position).xa is not None
    if is_restarted:
        found = decoded(log, position)
        assert reported(found) == []
    begin = len(found.events)
    log.standalone(f"XA ROLLBACK X'{OTHER.hex()}',X'',1")
    log.standalone(f"XA COMMIT X'{XID.hex()}',X'',1")
    found.feed(log.dump()[len(sent) :])
    assert reported(found, begin) == expected
    seen = [event.xids for event in found.events if isinstance(event, RowsFilled)]
    commit = [coordinate for coordinate, _ in found.gtids[-1:]]
    assert seen == [tuple(commit)] * expected.count("suspected"), "a read of the table has to see the commit"


@pytest.mark.parametrize("spool_bytes_max", [1 << 30, 1])
def test_large_transaction_with_a_statement_is_reported_once(spool_bytes_max: int) -> None:
    """M07: with its own number, which nothing else delivers if it has no captured rows."""
    log = Log()
    one(log, 1)
    log.begin()
    write_elsewhere(log)
    log.insert(T, (8, "x"))
    log.commit()
    log.begin()
    log.query("UPDATE x SET v = 1", "else")
    log.commit()
    found = reader(log, spool_bytes_max=spool_bytes_max)
    found.feed(log.dump())
    seen = [xid for event in found.events if isinstance(event, RowsFilled) for xid in event.xids]
    assert seen == [coordinate for coordinate, _ in found.gtids[-2:]]
    assert len(rows_of(found)) == 3

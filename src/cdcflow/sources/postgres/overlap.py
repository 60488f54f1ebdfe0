"""Whether the server's log still is the one that ours was made from.

A server that was restored from a copy of its files bears the same identity, the same timeline and the same slot, and
soon its log is past our position again, with other changes. Positions do not tell; content does. The slot of a copy
stands where the copy was made or before, and our log goes on behind that:

    the server's log   ─────┤ slot ├──x──x──x──x──x──▶       x: a transaction, by its end and its id
    our log            ──x──x──x──x──x──┤ our position        both must have the same up to there
                                 └ the overlap ┘

So what the slot still gives up to our position must be just what our log has there. Where the slot stands at our
position the server knew that everything before is ours, and there is nothing to compare; that is so after every
orderly stop.
"""

from __future__ import annotations

import time

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import HistoryLost
from cdcflow.ports import TransactionsBack
from cdcflow.sources.postgres.connection import Connection, Connector, history_lost, literal
from cdcflow.sources.postgres.lsn import position_of
from cdcflow.sources.postgres.slot import Slot
from cdcflow.sources.postgres.stream import ACTIVE_WAIT_S, named, plugin_options
from cdcflow.sources.postgres.wire import positions

# A transaction's messages come without a break and bear its id. Of those with a row (I, U, D, T) its id and the end
# that its Commit message (C, flags, place, end) names are asked for, as pairs of eight bytes in one value.
_GIVEN = """
SELECT coalesce(pg_catalog.string_agg(bounds, ''), '') FROM (
    SELECT pg_catalog.int8send(xid::text::bigint) || pg_catalog.decode(
               max(CASE WHEN get_byte(data, 0) = 67 THEN pg_catalog.encode(substring(data FROM 11 FOR 8), 'hex') END),
               'hex') AS bounds
    FROM pg_catalog.pg_logical_slot_peek_binary_changes({arguments})
    GROUP BY xid HAVING bool_or(get_byte(data, 0) IN (73, 85, 68, 84))
) AS found
"""


def check_same(
    connector: Connector, slot: Slot, publication: str, since: int, position: int, back: TransactionsBack
) -> None:
    """That our log and the server's have the same transactions after `since` and up to `position`.

    Raises:
        HistoryLost: they do not: the server was restored, and has gone its own way.
        SourceUnavailable: somebody still uses the slot.
    """
    first, last = str(position_of(since)), str(position_of(position))
    ours = back(lambda found: str(found) <= first)
    theirs = _given(connector, slot, publication, since, position)
    if (differs := first_difference(_between(ours, first, last), _between(theirs, first, last))) is not None:
        raise lost(slot.name, differs, last)


def lost(slot: str, differs: str, last: str) -> HistoryLost:
    return history_lost(
        f"slot {slot} gives other transactions than our log has from {differs} on, before our position {last}: the "
        "server was restored from a copy, and has gone its own way since"
    )


def first_difference(ours: pa.Table, theirs: pa.Table) -> str | None:
    """The first position at which one of them has a transaction that the other has not, None where both are alike."""
    length = min(len(ours), len(theirs))
    alike = pc.and_(
        pc.equal(ours.column("position")[:length], theirs.column("position")[:length]),
        pc.equal(ours.column("xid")[:length], theirs.column("xid")[:length]),
    )
    where = pc.index(alike, False).as_py() if length else -1
    at = where if where >= 0 else length
    left = [str(table.column("position")[at]) for table in (ours, theirs) if at < len(table)]
    return min(left, default=None)


def _between(table: pa.Table, first: str, last: str) -> pa.Table:
    """The transactions after `first` and up to `last`, in the order of their positions."""
    position = table.column("position")
    return table.filter(pc.and_(pc.greater(position, first), pc.less_equal(position, last))).sort_by("position")


def _given(connector: Connector, slot: Slot, publication: str, since: int, position: int) -> pa.Table:
    """What the slot gives up to a position, and perhaps a little more: `position` and `xid` of its transactions.

    The server reads its log from the slot's place on, as it does for every stream, and for as long as that takes.
    """
    connection = connector.connect("overlap", statement_timeout="0")
    try:
        if slot.confirmed is not None and slot.confirmed < since:
            # After a crash the slot may stand before the place where our log began. From there on it is ours; what
            # comes before cannot be decoded where the publication was not there yet.
            _ask(connection, slot.name, publication, _advance(slot.name, since))
        pairs = np.frombuffer(
            _ask(connection, slot.name, publication, _peek(connection, slot, publication, position)), ">i8"
        )
    finally:
        connector.discard(connection)
    xid, end = pairs.astype(np.int64).reshape(-1, 2).T
    return pa.table({"position": positions(np.ascontiguousarray(end)), "xid": xid.astype(np.uint64)})


def _advance(slot: str, to: int) -> str:
    return f"SELECT pg_catalog.pg_replication_slot_advance({literal(slot)}, {literal(position_of(to))})::text::bytea"


def _peek(connection: Connection, slot: Slot, publication: str, position: int) -> str:
    options = plugin_options(connection.info.server_version, publication, binary=False, streaming=False)
    listed = ", ".join(literal(word) for option in options.items() for word in option)
    return _GIVEN.format(arguments=f"{literal(slot.name)}, {literal(position_of(position))}, NULL, {listed}")


def _ask(connection: Connection, slot: str, publication: str, statement: str) -> bytes:
    deadline = time.monotonic() + ACTIVE_WAIT_S
    while True:
        try:
            row = connection.execute(statement.encode(), binary=True).fetchone()
        except psycopg.errors.ObjectInUse as error:
            # Our last stream's connection may still be ending.
            if time.monotonic() > deadline:
                raise named(error, f"comparing our log with slot {slot}", publication) from None
            time.sleep(0.1)
        except psycopg.Error as error:
            raise named(error, f"comparing our log with slot {slot}", publication) from None
        else:
            return bytes(row[0]) if row else b""

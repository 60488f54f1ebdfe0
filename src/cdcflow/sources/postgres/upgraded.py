"""Checks whether a server is the log's own after pg_upgrade, which carried the slot over, so that no change is missing.

pg_upgrade gives a server another identity. Since version 17 it also carries logical slots over, after a check that each
has delivered everything that its server logged. The new slot is at another position. Whether it is that slot, or one
that a person created later, is recorded nowhere, but it can be proven, because pg_upgrade begins a new log:

    old log  ──c──c──[shutdown]                   the change log ends here: the slot had delivered everything
    new log  [begins] · · [slot] · [shutdown] ──c──c──▶
                └── no transaction wrote ──┘

The first record of that log has no predecessor, and the log from there is kept, because the slot needs it. If no
transaction wrote anything up to the first shutdown after the slot's position, then no change exists that the old slot
did not deliver and the new one does not have. (pg_upgrade.c: the slots are created last, in a server without other
sessions, which is then stopped; pg_resetwal.c: WriteEmptyXLOG; slot checks: check.c of PostgreSQL 17.)

The publication is proven by its rows: pg_upgrade wrote them before it created the slot, and anyone who altered it since
has written them later than the slot's `catalog_xmin`. Since version 18 a publication must also publish generated
columns; before, generated columns were not captured, and pg_upgrade leaves publications without them. So a move changes
that setting, provided that no captured table has such columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cdcflow.errors import CdcflowError
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.connection import Connection, Connector, query_row
from cdcflow.sources.postgres.identity import IdentifiedSystem
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.publication import GENERATED, Publication
from cdcflow.sources.postgres.slot import Slot
from cdcflow.sources.postgres.stored_state import PostgresState, captured_names
from cdcflow.sources.postgres.wal import WalRecord, records

CARRIES_SLOTS = 17
"""The first major version whose slots pg_upgrade carries over."""
READ_MAX = 4 << 20
"""How much of the new log is searched for the shutdown after the slot's creation."""

_FIRST = """
SELECT pg_catalog.pg_size_bytes(current_setting('wal_segment_size')), catalog_xmin::text::bigint
FROM pg_catalog.pg_replication_slots WHERE slot_name = %s
"""

_GENERATED = """
SELECT string_agg(DISTINCT a.attrelid::regclass::text, ', ') FROM pg_catalog.pg_attribute a
WHERE a.attrelid = ANY (%s::oid[]) AND a.attgenerated = 's' AND NOT a.attisdropped
"""


class NotProven(Exception):
    """Raised when changes may be missing; the text is why."""


def check_carried(
    connector: Connector,
    connection: Connection,
    before: PostgresState,
    system: IdentifiedSystem,
    position: Lsn,
    ours: Slot | None,
    found: Publication | None,
) -> Lsn:
    """Check that the log's server was upgraded to this one, and that its slot was carried over and never used since.
    Return the slot's position, where the log continues.

    Raises:
        NotProven: the server, or the slot, may have another history.
    """
    if before.version is None or before.version < CARRIES_SLOTS:
        was = "of an unknown version" if before.version is None else f"PostgreSQL {before.version}"
        raise NotProven(f"the log's server was {was}, and pg_upgrade carries slots over only from {CARRIES_SLOTS}")
    if ours is None:
        raise NotProven(f"slot {before.slot} does not exist there")
    ours.check_kind(system.database)
    if ours.is_lost or ours.confirmed is None or ours.restart is None or ours.active_pid is not None:
        raise NotProven(f"slot {ours.name} is invalid there, or in use")
    if ours.confirmed <= position:
        raise NotProven(f"slot {ours.name} is at {ours.confirmed} there, not after the log's end {position}")
    segment, first_later = query_row(connection, _FIRST, (ours.name,))
    _check_publication(before, found, first_later)
    if found is not None and GENERATED in found.wrong:
        _check_generated(connection, found, before)
    begin = Lsn(ours.restart.value - ours.restart.value % segment)
    end = min(ours.confirmed + READ_MAX, begin + segment, system.end, key=lambda lsn: lsn.value)
    try:
        check_log(records(connector, begin, end, system.timeline), ours.confirmed)
    except CdcflowError as error:
        raise NotProven(f"its log cannot be read: {str(error).splitlines()[0]}") from None
    return ours.confirmed


def check_log(log: Iterator[WalRecord], slot: Lsn) -> None:
    """Check that this log begins here, and has no transaction's record before the first shutdown after the slot."""
    first = next(log, None)
    if first is None or first.before != 0 or not first.is_shutdown:
        raise NotProven("its slot was not created right after pg_upgrade")
    for record in log:
        if record.transaction != 0:
            break
        if record.is_shutdown and record.lsn >= slot:
            return
    raise NotProven("transactions wrote there before the server was stopped after the slot's creation")


def _check_publication(before: PostgresState, found: Publication | None, first_later: int) -> None:
    """Check that the publication is as pg_upgrade left it, for every table that it had. `first_later`: the id of the
    first transaction after pg_upgrade."""
    if found is None or set(found.wrong) - {GENERATED}:
        raise NotProven(f"publication {before.publication} does not exist there, or publishes otherwise")
    then = json.loads(before.publication_state)
    written = [found.written]
    for name, oid, known in _entries(then, found):
        if known is None:
            raise NotProven(f"publication {before.publication} lacks {name}, or not under number {oid}")
        written.append(known)
    if not all(_is_earlier(one, first_later) for one in written):
        raise NotProven(f"publication {before.publication} was altered after the upgrade")


def _check_generated(connection: Connection, found: Publication, before: PostgresState) -> None:
    """Check that no table has columns that the publication begins to publish with the move."""
    (tables,) = query_row(connection, _GENERATED, (list(captured_names(before)),))
    if tables:
        raise NotProven(f"publication {found.name} did not publish the generated columns of {tables}")


def _entries(then: Mapping[str, Any], found: Publication) -> Iterator[tuple[str, int, int | None]]:
    """Return the entries that a publication had: name, number, and the transaction that wrote the current entry of the
    same name and number; None if no such entry exists now."""
    for text, (oid, *_) in then["tables"].items():
        name, entry = TableId(*json.loads(text)), found.entries.get(oid)
        is_listed = entry is not None and entry.table == name and not entry.filtered
        # If the publication now publishes all tables, one that was listed before is among them.
        yield str(name), oid, entry.written if entry and is_listed else found.written if found.all_tables else None
    for schema, (oid, *_) in then.get("schemas", {}).items():
        entry_of_schema = found.schemas.get(schema)
        yield schema, oid, entry_of_schema[2] if entry_of_schema and entry_of_schema[0] == oid else None
    for text, (oid, _) in then.get("members", {}).items():
        yield str(TableId(*json.loads(text))), oid, found.members.get(oid)
    for oid in then.get("all", ()):
        yield f"table {oid}", oid, found.written if found.all_tables and oid not in (found.excepted or {}) else None


def _is_earlier(one: int, other: int) -> bool:
    """Whether a transaction id of 32 bits precedes the other; ids wrap around."""
    return 0 < (other - one) % (1 << 32) < 1 << 31

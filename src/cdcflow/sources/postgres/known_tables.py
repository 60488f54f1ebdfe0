"""Which tables a log has captured so far, as its checkpoint keeps it. Pure.

`publication_state` (see `publication.fingerprint`) has the tables that the publication names. If that publication sends
more tables than are captured, `captured` has each captured table with its oid, and since when it is captured.
"""

from __future__ import annotations

import json

from cdcflow.model.table import TableId
from cdcflow.sources.postgres.catalog import Selected
from cdcflow.sources.postgres.lsn import START, Lsn
from cdcflow.sources.postgres.stored_state import PostgresState, captured_names


def captured_since(state: PostgresState, selected: Selected, since: Lsn) -> frozenset[int] | None:
    """Return the captured tables whose changes are in the change log from position `since` onwards.

    None if the log has everything that the publication sends, as a log of an earlier cdcflow does.
    """
    if state.captured is None:
        return None
    known = {oid for oid, at in state.captured.values() if at <= since}
    return frozenset(known & {t.rel.oid for t in selected.tables})


def captured_now(before: PostgresState | None, selected: Selected, position: Lsn) -> dict[TableId, tuple[int, Lsn]]:
    """Return the captured tables, each with its oid and since when it is captured, for a publication that sends others
    too.

    If the publication sent no other tables until now, then all of its tables were captured all the time.
    """
    if before is None or before.captured is None:
        then = dict.fromkeys(captured_names(before), START)
    else:
        then = dict(before.captured.values())
    return {t.rel.id: (t.rel.oid, then.get(t.rel.oid, position)) for t in selected.tables}


def state_of_selected(state: str, selected: Selected) -> str:
    """Return a fingerprint without the tables that are no longer selected: whatever happened to them is not a loss."""
    value = json.loads(state)
    wanted = {t.rel.oid for t in selected.tables}
    for kind in ("tables", "members"):
        if kind in value:
            value[kind] = {name: entry for name, entry in value[kind].items() if entry[0] in wanted}
    if "all" in value:
        value["all"] = [oid for oid in value["all"] if oid in wanted]
    if "schemas" in value:
        schemas = {t.rel.id.schema for t in selected.tables}
        value["schemas"] = {name: entry for name, entry in value["schemas"].items() if name in schemas}
    return json.dumps(value)

"""Which tables a log has captured so far, as its checkpoint keeps it in `source`. Pure.

`publication_state` (see `publication.fingerprint`) has the tables that the publication names. Where that gives more
than what is captured, `captured` has each captured table with its oid, and since when it is captured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cdcflow.model.position import Position
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.catalog import Selected
from cdcflow.sources.postgres.lsn import lsn_of, position_of


def names_by_oid(source: Mapping[str, str]) -> dict[int, TableId]:
    """The tables that an earlier run captured, by oid."""
    tables = json.loads(source.get("publication_state", '{"tables": {}}'))["tables"]
    captured = json.loads(source.get("captured", "{}"))
    return {entry[0]: TableId(*json.loads(name)) for name, entry in (*tables.items(), *captured.items())}


def captured_since(source: Mapping[str, str], selected: Selected, since: int) -> frozenset[int] | None:
    """The captured tables whose changes are in the change log from position `since` onwards; None if it has everything
    that the publication sends, as a log of an earlier cdcflow does."""
    if "captured" not in source:
        return None
    known = {oid for oid, at in json.loads(source["captured"]).values() if lsn_of(at) <= since}
    return frozenset(known & {t.rel.oid for t in selected.tables})


def captured_text(before: Mapping[str, str], selected: Selected, position: Position) -> str:
    """The captured tables where the publication gives others too: each with its oid, and since when it is captured.
    Where it gave no others so far, its tables were captured all the time."""
    listed = json.loads(before.get("captured", "{}"))
    if "captured" not in before:
        listed = {str(oid): [oid, position_of(0)] for oid in names_by_oid(before)}
    then = {entry[0]: entry[1] for entry in listed.values()}
    names = {json.dumps([t.rel.id.schema, t.rel.id.name]): t.rel.oid for t in selected.tables}
    return json.dumps({name: [oid, then.get(oid, position)] for name, oid in names.items()}, separators=(",", ":"))


def state_of_selected(state: str, selected: Selected) -> str:
    """A fingerprint without the tables that are no longer selected: whatever happened to them is not a loss."""
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

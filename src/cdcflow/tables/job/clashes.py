"""Find the tables whose routes cannot be used together (`cdcflow.model.routes`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cdcflow.model.routes import Destination, Routes
from cdcflow.model.table import TableId
from cdcflow.tables.merge.refusals import CannotFollow, member_refused

_ROUTES = "merge.tables.routes"


def find(tables: Iterable[TableId], routes: Routes) -> dict[TableId, CannotFollow]:
    """Return the tables that cannot be merged together with others, and why: their rows would be indistinguishable, or
    have other columns in their keys."""
    placed: dict[TableId, dict[TableId, Destination]] = {}
    for table in tables:
        there = routes.destination(table)
        placed.setdefault(there.table, {})[table] = there
    found: dict[TableId, CannotFollow] = {}
    for target, members in placed.items():
        names = {tuple(there.key) for there in members.values()}
        if len(names) > 1:
            told = " and ".join(sorted(f"({', '.join(one)})" if one else "none" for one in names))
            for table in members:
                found[table] = member_refused(
                    table,
                    target,
                    f"tables that go there have different columns of their names in the key: {told}",
                    f"give the groups of their routes the same names, or name another table ({_ROUTES})",
                )
            continue
        values: dict[tuple[str, ...], list[TableId]] = {}
        for table, there in members.items():
            values.setdefault(tuple(there.key.values()), []).append(table)
        for alike in values.values():
            for table in alike if len(alike) > 1 else ():
                others = ", ".join(str(other) for other in sorted(alike) if other != table)
                found[table] = member_refused(
                    table,
                    target,
                    f"{others} goes there too, and nothing distinguishes their rows",
                    f"make what differs in their names a group, (?P<shard>…), or name another table ({_ROUTES})",
                )
    return found


def between_logs(keys: Mapping[str, Sequence[Mapping[str, str]]]) -> str | None:
    """Return why the tables of several logs cannot be in one table of the warehouse; `None` if they can. `keys`: for
    each log, the columns and values that distinguish the rows of its tables from others."""
    if len(keys) < 2:
        return None
    values: dict[tuple[tuple[str, str], ...], str] = {}
    names = {tuple(key) for listed in keys.values() for key in listed}
    if len(names) > 1:
        told = " and ".join(sorted(f"({', '.join(one)})" if one else "none" for one in names))
        return f"their routes add different columns to its key: {told}"
    for log, listed in keys.items():
        for key in listed:
            if values.setdefault(tuple(key.items()), log) != log:
                return "nothing distinguishes their rows"
    return None


def by_target(tables: Iterable[TableId], routes: Routes) -> dict[str, list[str]]:
    """Return, for each table of the warehouse that does not have the name of a captured table, the names of the
    captured tables whose rows it gets."""
    found: dict[str, list[str]] = {}
    for table in tables:
        if (there := routes.destination(table).table) != table:
            found.setdefault(str(there), []).append(str(table))
    return found

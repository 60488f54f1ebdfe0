"""Foreign keys whose cascading changes are not in the binary log (M10): captured tables that can silently differ.

    server                                        a parent's DELETE, or UPDATE of its key, is logged with
    MySQL 9.6 and later                           the children's rows, before the parent's
    the same with innodb_native_foreign_keys=ON   the parent's row alone: InnoDB changes the children by itself
    MySQL before 9.6, MariaDB                     the parent's row alone

Where the log has the children's rows, they are changes like any other. Where it has not, nobody can tell from the log
which children a parent had, so the tables are named: in `cdcflow doctor`, and in `cdcflow status` for as long as they
are captured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.connection import Connection, query, version_of
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.results import quoted
from cdcflow.sources.mysql.server import variables

LOGGED_FROM = (9, 6)
"""From this MySQL on, the server and not InnoDB carries cascades out, and logs them."""

_KEYS = """
SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_NAME IS NOT NULL
"""
_RULES = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME,
DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL')
FROM information_schema.REFERENTIAL_CONSTRAINTS
"""
_SHOWN = re.compile(r"^\s*CONSTRAINT [`\"]?(.+?)[`\"]? FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL)", re.M)

Unlogged = Mapping[TableId, tuple[str, ...]]
"""Tables that rows come to, change in or go from without a trace, each with the foreign keys by which they do."""


def unlogged(connection: Connection, flavor: Flavor, is_captured: Callable[[TableId], bool]) -> Unlogged:
    """The captured tables that a cascade can change behind the log's back; none where the server logs cascades."""
    if _are_logged(connection, flavor):
        return {}
    keys: dict[TableId, set[str]] = {}
    for schema, name, constraint in query(connection, _KEYS):
        if is_captured(table := TableId(schema, name)):
            keys.setdefault(table, set()).add(constraint)
    rules = {(TableId(s, t), c): bool(cascades) for s, t, c, cascades in query(connection, _RULES)} if keys else {}
    found: dict[TableId, tuple[str, ...]] = {}
    for table, constraints in sorted(keys.items()):
        if all((table, c) in rules for c in constraints):
            cascading = [c for c in constraints if rules[table, c]]
        else:
            # MariaDB shows rules only to whom may do more than SELECT, which a capture need not.
            cascading = _SHOWN.findall(_definition(connection, table))
        if cascading:
            found[table] = tuple(sorted(cascading))
    return found


def _are_logged(connection: Connection, flavor: Flavor) -> bool:
    if flavor != "mysql" or version_of(connection.get_server_info()) < LOGGED_FROM:
        return False
    return variables(connection, "innodb_native_foreign_keys").get("innodb_native_foreign_keys") != "ON"


def _definition(connection: Connection, table: TableId) -> str:
    return str(query(connection, f"SHOW CREATE TABLE {quoted(table.schema)}.{quoted(table.name)}")[0][1])

"""The kinds of steps that `make test` draws from: those after which nothing is known to differ.

`make fuzz-ddl` draws from all. A kind comes in here when what it shows is mended; its case in `cases/` loses its `open`
then.
"""

from __future__ import annotations

from tests.ddlfuzz import clauses, columns, keys, rows, servers, tables
from tests.ddlfuzz.kinds import KINDS
from tests.ddlfuzz.model import Server

ROWS = {"insert", "update", "rekey", "delete", "truncate", "begin", "commit", "rollback"}
TABLES = {"create_table", "change_key"}
COLUMNS = {
    "add_null",
    "add_constant",
    "add_not_null",
    "drop_column",
    "rename_column",
    "swap_columns",
    "set_default",
    "drop_default",
    "to_text",
}
EVERYWHERE = ROWS | TABLES | COLUMNS
POSTGRES = {
    "drop_table",
    "recreate_table",
    "rename_table",
    "move_table",
    "swap_tables",
    "readd_column",
    "add_random",
    "add_counted",
    "add_identity",
    "add_computed",
    "alter_using",
    "round_numbers",
    "widen",
    "rewrite",
    "rewrite_sorted",
    "relabel",
    "add_label",
    "identity_full",
    "identity_default",
    "publish_less",
    "publish_all",
    "unpublish",
    "filter_rows",
    "create_parted",
    "truncate_part",
    "drop_part",
    "detach_part",
    "attach_part",
}


_FAMILIES = (clauses, columns, keys, rows, servers, tables)  # importing them registers their kinds


def _all_of(server: Server) -> frozenset[str]:
    return frozenset(k.name for k in KINDS.values() if server in k.servers)


GREEN: dict[Server, frozenset[str]] = {
    "postgres": frozenset(EVERYWHERE | POSTGRES),
    "mysql": _all_of("mysql"),
    "mariadb": _all_of("mariadb"),
}

__all__ = ["GREEN"]

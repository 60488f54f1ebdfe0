"""The kinds of steps that `make test` draws from: those after which nothing is known to differ.

`make fuzz-ddl` draws from all. A kind comes in here when what it shows is mended; its case in `cases/` loses its `open`
then.
"""

from __future__ import annotations

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
MYSQL = {
    "add_random",
    "add_counted",
    "add_computed",
    "widen",
    "change_column",
    "move_column",
    "extend_labels",
    "reorder_labels",
    "rewrite",
    "rewrite_sorted",
    "online_change",
}
GREEN: dict[Server, frozenset[str]] = {
    # Without what rewrites rows: a rewrite takes the constant default of old rows with it, too.
    "postgres": frozenset(
        EVERYWHERE
        | {
            "drop_table",
            "recreate_table",
            "readd_column",
            "swap_tables",
            "add_label",
            "identity_full",
            "identity_default",
            "unpublish",
            "filter_rows",
        }
    ),
    "mysql": frozenset(EVERYWHERE | MYSQL),
    "mariadb": frozenset(EVERYWHERE | MYSQL),
}

__all__ = ["GREEN"]

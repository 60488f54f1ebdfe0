"""The kinds of steps that `make test` draws from: those after which nothing is known to differ.

`make fuzz-ddl` draws from all. A kind comes in here when what it shows is mended; its case in `cases/` loses its `open`
then.
"""

from __future__ import annotations

from tests.ddlfuzz.model import Server

EVERYWHERE = frozenset(
    {"insert", "update", "rekey", "delete", "truncate", "begin", "commit", "rollback", "create_table", "drop_table"}
)
GREEN: dict[Server, frozenset[str]] = {
    "postgres": EVERYWHERE,
    "mysql": EVERYWHERE,
    "mariadb": EVERYWHERE,
}

__all__ = ["GREEN"]

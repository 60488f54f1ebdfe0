"""A kit for sources that poll (`cdcflow.sources.polled`): tables as rows in Python, and the suite's SQL over them.

Subclass `PolledKit`: write a table's rows to where your poller finds them, and open your source. After each transaction
the kit polls once, as a running capture does, because such a source sees everything between two polls as one change.
"""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

from cdcflow.model.table import TableId
from cdcflow.sources.polled import PolledSource
from cdcflow.testing.sources.kit import Act

_STATES = "a poll sees rows, not statements"
_ABSENT = "no server"
POLLED_CANNOT: Mapping[Act, str] = {
    "log every change": _STATES,
    "alter tables": _STATES,
    "tables without key": "a row without a key is never changed",
    "hold commits": "what a poll found can be seen at once",
    "lock tables": _ABSENT,
    "revoke rights": _ABSENT,
    "restore a copy": "the ledger is a folder of cdcflow's",
    "write past the log": "each poll finds it",
}


class PolledKit(ABC):
    """Implements `SourceKit`. `schema`: the schema of the source's tables, whose columns are `id` (int32, the key) and
    `name`."""

    cannot: ClassVar[Mapping[Act, str]] = POLLED_CANNOT
    schema: ClassVar[str] = "public"

    def __init__(self) -> None:
        self._tables: dict[str, list[dict[str, Any]]] = {"items": [], "others": []}
        self.table = self.named("items")
        for name in self._tables:
            self.write(name, [])
        self._poll()

    @abstractmethod
    def write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace a table's rows by these, in the place where the poller finds them."""

    @abstractmethod
    def open_source(self) -> PolledSource: ...

    def open_reader(self) -> PolledSource:
        return self.open_source()

    def table_id(self, name: str) -> TableId:
        return TableId(self.schema, name)

    named = table_id

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        return list(self._tables[name])

    def execute(self, *statements: str) -> None:
        """Run statements, and poll once if they are committed."""
        before, kept = deepcopy(self._tables), dict[str, dict[str, list[dict[str, Any]]]]()
        work = deepcopy(self._tables)
        for statement in statements:
            if statement == "ROLLBACK":
                return
            if found := re.fullmatch(r"SAVEPOINT (\w+)", statement):
                kept[found[1]] = deepcopy(work)
            elif found := re.fullmatch(r"ROLLBACK TO SAVEPOINT (\w+)", statement):
                work = deepcopy(kept[found[1]])
            else:
                _run(work, statement)
        self._tables = work
        for name, rows in work.items():
            if rows != before.get(name):
                self.write(name, rows)
        self._poll()

    def _poll(self) -> None:
        source = self.open_source()
        try:
            for _ in range(2):  # a poller may wait until something is the same in two polls
                source.poll_now()
        finally:
            source.close()

    def truncate(self, name: str) -> None:
        self.execute(*(f"DELETE FROM {name} WHERE id = {row['id']}" for row in self._tables[name]))

    # ── acts that such a source cannot do: no scenario that needs one is collected ──────────────────────────

    def _cannot(self, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("this scenario needs an act that `cannot` names, and should not have been collected")

    execute_unlogged = create = add_column_with_values = retype = rename = _cannot
    hold_commit = locked = copied = revoke_select = grant_select = _cannot


def _run(tables: dict[str, list[dict[str, Any]]], statement: str) -> None:
    if found := re.fullmatch(r"INSERT INTO (\w+)(?: \([^)]*\))? VALUES (.*)", statement, re.DOTALL):
        rows = ast.literal_eval("[" + re.sub(r"\bNULL\b", "None", found[2]) + "]")
        tables[found[1]] += [{"id": number, "name": name} for number, name in rows]
    elif found := re.fullmatch(r"UPDATE (\w+) SET (\w+) = (.*) WHERE id = (-?\d+)", statement):
        for row in tables[found[1]]:
            if row["id"] == int(found[4]):
                row[found[2]] = ast.literal_eval(found[3])
    elif found := re.fullmatch(r"DELETE FROM (\w+) WHERE id = (-?\d+)", statement):
        tables[found[1]] = [row for row in tables[found[1]] if row["id"] != int(found[2])]
    else:
        raise ValueError(f"the kit does not understand {statement!r}")

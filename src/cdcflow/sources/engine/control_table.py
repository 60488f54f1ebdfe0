"""A table in the source through which operators who have only SQL control a capture: reads its rows and answers them.

The statements are the same for every server; a dialect defines how the table is named and created, and which errors
mean that the table is not as required. A row is claimed before it is executed, by an UPDATE that succeeds for only one
claimant: so it is never executed twice. After a crash in between, the row stays claimed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from cdcflow.capture.ports.control import ControlRow
from cdcflow.errors import CdcflowError, ConfigurationError, RightMissing
from cdcflow.model.table import TableId
from cdcflow.sources.engine.connections import Connector, Pool


class CursorConnection(Protocol):
    """A connection of a client library, as PEP 249 defines it."""

    def cursor(self) -> Any: ...


C = TypeVar("C", bound=CursorConnection)

Flaw = Literal["denied", "missing"]
"""The table may not be used, or it does not exist or lacks a column."""


class SqlControlTable(ABC, Generic[C]):
    """Implements `cdcflow.ports.ControlTable`, except for the methods that a dialect defines.

    `ddl`: the statements that create the table and allow cdcflow to use it, with the placeholders `{schema}`, `{table}`
    and `{user}`. `created`: how many of them create it; a user that only lacks a right needs the statements after
    those. An operator needs INSERT on the table to send commands, and SELECT to see the answer.
    """

    ddl: ClassVar[Sequence[str]]
    created: ClassVar[int] = 0

    def __init__(self, connector: Connector[C], name: TableId) -> None:
        self._pool = Pool(connector, "control table")
        self._error = connector.error
        self._name = name
        self._table = f"{self.quote(name.schema)}.{self.quote(name.name)}"

    # ── what a dialect defines ──────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @abstractmethod
    def user_of(self, connection: C) -> str:
        """Return the user of the connection, in the form that a GRANT requires."""

    @abstractmethod
    def flaw(self, error: Exception) -> Flaw | None:
        """Return what is wrong with the table according to a library's error; None if it concerns the server or the
        connection."""

    # ── cdcflow.ports.ControlTable ──────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        self._run(
            "SELECT id, operation, arguments, asked_by, state, answer, answered_at FROM {} WHERE id = 0",
            "UPDATE {} SET state = 'claimed', answer = NULL, answered_at = now() WHERE id = 0",
        )

    def waiting(self) -> Sequence[ControlRow]:
        rows, _ = self._run(
            "SELECT id, operation, arguments, asked_by FROM {} WHERE state = 'new' ORDER BY id LIMIT 100"
        )
        return [ControlRow(number, operation, arguments, asked_by) for number, operation, arguments, asked_by in rows]

    def claimed(self) -> Sequence[int]:
        rows, _ = self._run("SELECT id FROM {} WHERE state = 'claimed' ORDER BY id")
        return [number for (number,) in rows]

    def claim(self, number: int) -> bool:
        _, changed = self._run("UPDATE {} SET state = 'claimed' WHERE id = %s AND state = 'new'", parameters=(number,))
        return changed == 1

    def answer(self, number: int, state: Literal["done", "refused"], text: str) -> None:
        self._run(
            "UPDATE {} SET state = %s, answer = %s, answered_at = now() WHERE id = %s AND state = 'claimed'",
            parameters=(state, text, number),
        )

    def close(self) -> None:
        self._pool.close()

    def _run(self, *statements: str, parameters: Sequence[object] = ()) -> tuple[Sequence[tuple[Any, ...]], int]:
        """Run statements with the same parameters (`%s`); return the last one's rows, and the number of rows that it
        changed."""

        def work(connection: C) -> tuple[Sequence[tuple[Any, ...]], int]:
            found: tuple[Sequence[tuple[Any, ...]], int] = ((), 0)
            table = self._table.replace("%", "%%") if parameters else self._table
            try:
                for statement in statements:
                    with connection.cursor() as cursor:
                        cursor.execute(statement.format(table), parameters or None)
                        found = (cursor.fetchall() if cursor.description else ()), cursor.rowcount
            except self._error as error:
                if (explained := self._explain(connection, error)) is not None:
                    raise explained from None
                raise
            return found

        return self._pool.run(f"checking the control table {self._table}", work)

    def _explain(self, connection: C, error: Exception) -> CdcflowError | None:
        match self.flaw(error):
            case None:
                return None
            case "denied":
                user = self.user_of(connection)
                return RightMissing(
                    f"the control table {self._name} cannot be used by {user}",
                    remedy=f"run {self._statements(user, self.created)}",
                )
            case "missing":
                return ConfigurationError(
                    f"the control table {self._name} does not exist, or lacks a column",
                    remedy=f"run {self._statements(self.user_of(connection))}",
                    runbook="table-not-found",
                )

    def _statements(self, user: str, first: int = 0) -> str:
        names = {"schema": self.quote(self._name.schema), "table": self._table, "user": user}
        return "; ".join(statement.format(**names) for statement in self.ddl[first:])

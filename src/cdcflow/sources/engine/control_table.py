"""A table in the source through which operators who have only SQL control a capture: reads its rows and answers them.

The statements are the same for every server; a dialect defines how to run one, how the table is named and created, and
which errors mean that the table is not as required. A row is claimed before it is executed, by an UPDATE that succeeds
for only one claimant: so it is never executed twice. After a crash in between, the row stays claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from cdcflow.capture.ports.control import ControlRow
from cdcflow.errors import CdcflowError
from cdcflow.sources.engine.connections import Pool

C = TypeVar("C")

Execute = Callable[[C, str, Sequence[object]], tuple[Sequence[tuple[Any, ...]], int]]
"""Run a statement with its parameters (`%s`): its rows, and the number of rows that it changed."""


class SqlControlTable(Generic[C]):
    """Implements `cdcflow.ports.ControlTable`. `table`: its name, quoted. `explained`: what a library's error means for
    the table; None if the error concerns the server or the connection instead."""

    def __init__(
        self,
        pool: Pool[C],
        table: str,
        execute: Execute[C],
        error: type[Exception],
        explained: Callable[[C, Exception], CdcflowError | None],
    ) -> None:
        self._pool = pool
        self._table = table
        self._execute = execute
        self._error = error
        self._explained = explained

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
        def work(connection: C) -> tuple[Sequence[tuple[Any, ...]], int]:
            found: tuple[Sequence[tuple[Any, ...]], int] = ((), 0)
            try:
                for statement in statements:
                    table = self._table.replace("%", "%%") if parameters else self._table
                    found = self._execute(connection, statement.format(table), parameters)
            except self._error as error:
                if (explained := self._explained(connection, error)) is not None:
                    raise explained from None
                raise
            return found

        return self._pool.run(f"checking the control table {self._table}", work)

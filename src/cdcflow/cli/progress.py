"""Backfill progress for users: bars if stderr is a terminal, otherwise a plain line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cdcflow.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY_S = 5.0


class BackfillProgress:
    """Shows the tables of one status after another. A context manager."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = output.stderr()
        self._console = console
        self._bars = (
            Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}% {task.fields[state]:<9} {task.fields[rows]:>13} rows"),
                TimeRemainingColumn(),
                console=console,
            )
            if console.is_terminal
            else None
        )
        self._ids: dict[str, Any] = {}  # Any: rich's TaskID is opaque
        self._said: dict[str, str] = {}
        self._said_at = -LINE_EVERY_S

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, tables: Mapping[str, Mapping[str, Any]], *, last: bool = False) -> None:
        """Show the tables' states; `last`: no more follow, so print the rest."""
        if self._bars is not None:
            self._draw(self._bars, tables)
        elif last or time.monotonic() - self._said_at >= LINE_EVERY_S:
            self._said_at = time.monotonic()
            self._say(tables)

    def _draw(self, bars: Progress, tables: Mapping[str, Mapping[str, Any]]) -> None:
        for name, fields in tables.items():
            if name not in self._ids:
                self._ids[name] = bars.add_task(name, total=None, state="", rows="")
            done = fields.get("state") == "done"
            units = fields.get("units") or 0
            bars.update(
                self._ids[name],
                total=units or (1 if done else None),
                completed=(units or 1) if done else min(fields.get("units_done") or 0, units),
                state=str(fields.get("state")),
                rows=output.number(fields.get("rows")),
            )

    def _say(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        for name, fields in tables.items():
            rows = output.number(fields.get("rows"))
            line = f"backfill {name} {fields.get('state')} {output.percent(fields)} rows={rows}"
            if self._said.get(name) != line:
                self._said[name] = line
                self._console.print(line, markup=False)

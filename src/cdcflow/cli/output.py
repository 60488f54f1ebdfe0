"""The output of every command: results to stdout, progress and problems to stderr, numbers in readable form."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import typer

if TYPE_CHECKING:  # rich takes a tenth of a second to import, and a daemon prints no table
    from rich.console import Console
    from rich.table import Table

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters except tab and newline, and those that change the direction of what follows."""

PIPE_WIDTH = 200
"""The width without a terminal: wide enough that no line of a table is folded."""


def stdout() -> Console:
    """Created at each use: tests replace sys.stdout."""
    return _console(sys.stdout)


def stderr() -> Console:
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    is_terminal = file.isatty()
    width = None if is_terminal else PIPE_WIDTH
    # The output has names and texts of a source: `[red]` in one is no colour, and `:x:` no emoji.
    return Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=not is_terminal, width=width)


def plain(text: str) -> str:
    """Text from elsewhere, such as a server's messages or a table's name, without terminal control characters."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def print_json(value: object) -> None:
    """One JSON document in one line on stdout."""
    typer.echo(json.dumps(value, default=str, ensure_ascii=False))


def table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: int = 0) -> Table:
    """A plain table; the last `numbers` columns are aligned to the right."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(columns):
        made.add_column(name, justify="right" if number >= len(columns) - numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else plain(str(cell)) for cell in row))
    return made


def size(count: float | None) -> str:
    """Bytes in readable form; ? for None."""
    if count is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def number(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def percent(fields: Mapping[str, Any]) -> str:
    """How far a table's backfill is, from its entry in a status."""
    if fields.get("state") == "done":
        return "100%"
    units, done = fields.get("units") or 0, fields.get("units_done") or 0
    return f"{min(99, 100 * done // units)}%" if units else "0%"


def age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def utc_time(clock: int) -> str:
    """Microseconds since 1970 UTC, as `--as-of` takes them."""
    return datetime.fromtimestamp(clock // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{clock % 1_000_000:06}Z"

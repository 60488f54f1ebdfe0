"""The output of every command: results to stdout, progress and problems to stderr, tables for a terminal."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, TextIO

import typer

from cdcflow.reports.parts import Parts, SideNote, TextTable
from cdcflow.reports.readable import plain

if TYPE_CHECKING:  # rich takes a tenth of a second to import, and a daemon prints no table
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 200
"""The width without a terminal: wide enough that no line of a table is folded."""


def stdout() -> Console:
    """Return a console for stdout. It is created at each call, because tests replace sys.stdout."""
    return _console(sys.stdout)


def stderr() -> Console:
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    is_terminal = file.isatty()
    width = None if is_terminal else PIPE_WIDTH
    # The output has names and texts of a source: `[red]` in one is no colour, and `:x:` no emoji.
    return Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=not is_terminal, width=width)


def print_json(value: object) -> None:
    """Print a value as one JSON document, in one line on stdout."""
    typer.echo(json.dumps(value, default=str, ensure_ascii=False))


def show(report: Parts) -> None:
    """Print the parts of a report."""
    for part in report:
        match part:
            case TextTable():
                stdout().print(table(part))
            case SideNote():
                typer.echo(part.text, err=True)
            case text:
                typer.echo(text)


def table(part: TextTable) -> Table:
    """A table, without lines."""
    from rich.table import Table

    made = Table(
        title=part.title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    first_number = len(part.columns) - part.numbers
    for number, name in enumerate(part.columns):
        made.add_column(name, justify="right" if number >= first_number else "left", overflow="fold")
    for row in part.rows:
        made.add_row(*("" if cell is None else plain(str(cell)) for cell in row))
    return made

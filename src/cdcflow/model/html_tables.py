"""Renders a small table as HTML, for notebooks. Every text in it is data, and is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], notes: Sequence[str] = ()) -> str:
    """Return a table with a line of each note below it. A missing value is an empty cell."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _cell(value: object) -> str:
    return "<td></td>" if value is None else f"<td>{escape(str(value))}</td>"

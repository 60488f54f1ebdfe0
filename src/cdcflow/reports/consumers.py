"""Named consumers of a log as text: a table of them, and the rows that one reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdcflow.reports.parts import TextTable
from cdcflow.reports.readable import age, number

if TYPE_CHECKING:
    from cdcflow.log.query.consumers import Listed


def consumers_table(found: Sequence[Listed]) -> TextTable:
    """One row for each consumer: what it gets, how far it is, and which process reads it."""
    rows = [
        (
            one.state.name,
            _what(one),
            "backfill" if one.state.is_in_backfill else "changes",
            number(one.state.committed.offset),
            number(one.behind),
            "" if one.seconds is None else age(one.seconds),
            one.held_by or "",
        )
        for one in found
    ]
    return TextTable(("consumer", "tables", "reads", "offset", "rows behind", "behind", "read by"), rows)


def _what(one: Listed) -> str:
    wanted = one.state.definition
    return ", ".join(wanted.tables or ("all",)) + (f" ({wanted.ops})" if wanted.ops else "")


def consumer_row_line(line: dict[str, Any]) -> str:
    """A change that a consumer reads: offset, op, table and values."""
    values = " ".join(f"{name}={value}" for name, value in line["values"].items())
    left = "".join(f" {name}=(unchanged)" for name in line["unchanged"])
    return f"{line['offset']} {line['op']} {line['table']} {values}{left}".rstrip().replace("\n", "\\n")

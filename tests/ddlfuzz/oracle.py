"""How a log's contents of a table (`cdcflow.testing.folded.current`) and the source's differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from cdcflow.testing.folded import Logged, Unmergeable, current, read


def differences(rows: Iterable[dict[str, Any]], source: Iterable[Sequence[Any]], columns: Sequence[str]) -> str | None:
    """How a table's rows in its log and those of the source differ, in a line; `None` if they are equal."""
    logged = Counter(tuple(_plain(row.get(c, "(no such column)")) for c in columns) for row in rows)
    wanted = Counter(tuple(_plain(v) for v in row) for row in source)
    if logged == wanted:
        return None
    more, less = list((logged - wanted).elements()), list((wanted - logged).elements())
    at = {row[columns.index("id")]: row for row in more} if "id" in columns else {}
    for row in sorted(less, key=repr):
        if (other := at.get(row[columns.index("id")])) is not None:
            unequal = [
                f"{c}: {a!r} in the log, {b!r} in the source"
                for c, a, b in zip(columns, other, row, strict=True)
                if a != b
            ]
            return f"{len(less)} rows differ; id {row[columns.index('id')]}: {'; '.join(unequal)}"[:600]
    return f"{len(more)} rows in the log only, {len(less)} in the source only: {more[:1]} {less[:1]}"[:600]


def _plain(value: object) -> object:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


__all__ = ["Logged", "Unmergeable", "current", "differences", "read"]

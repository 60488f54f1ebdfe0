"""The answer to a query over tables, with the point in time that it shows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdcflow.model.html_tables import html_table

SHOWN_ROWS_MAX = 50
"""How many rows a notebook shows."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The rows of a query, and the point in time that they show: the log's cut `cut`, at the source's `position`; the
    source committed it at `commit_clock` (microseconds since 1970 UTC). Any library that takes Arrow streams also takes
    the answer itself: `polars.DataFrame(answer)`.

    `lacks`: what the rows may lack, such as the rest of a table whose backfill is not done; empty if nothing.
    """

    rows: pa.Table
    cut: int
    position: str
    commit_clock: int
    lacks: tuple[str, ...] = ()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as Arrow's C stream."""
        return self.rows.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return len(self.rows)

    def _repr_html_(self) -> str:
        """Return the first rows as HTML, for notebooks."""
        shown = self.rows.slice(0, SHOWN_ROWS_MAX)
        rows = (
            [list(row.values()) for row in shown.to_pylist()]
            if len(set(shown.column_names)) == shown.num_columns
            else []
        )
        notes = [f"{len(self.rows):,} rows, cut {self.cut}, position {self.position or 'none'}", *self.lacks]
        return html_table(shown.column_names, rows, notes)

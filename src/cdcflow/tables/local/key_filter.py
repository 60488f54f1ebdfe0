"""Find the files, row groups and rows of a table that have one of a range's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from cdcflow.tables.local.scan import Ends, Numbers
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.merge.reduce import ColumnLayout


class Keys:
    """The keys in a view of changes. `schema`: the table's."""

    def __init__(self, session: DuckSession, layout: ColumnLayout, changes: str, schema: pa.Schema) -> None:
        self._session = session
        self._changes = changes
        self._at = layout.key
        self.names = [layout.target.columns[i].name for i in layout.key]
        self._type = schema.field(self.first).type

    @property
    def first(self) -> str:
        """The column whose bounds are used."""
        return self.names[0]

    def near(self, ends: Sequence[Ends | None]) -> list[int]:
        """Return the indexes of the bounds of the first column that include one of the keys, or that are unknown."""
        known = {n: found for n, found in enumerate(ends) if found is not None}
        if len(ends) < 2 or not known:
            return list(range(len(ends)))
        inside = f"c.c{self._at[0]} >= b.least AND c.c{self._at[0]} <= b.greatest"
        query = f"SELECT n FROM {{}} b WHERE EXISTS (SELECT 1 FROM {self._changes} c WHERE {inside})"  # noqa: S608  cdcflow's own
        hit = set(self._session.over(_bounds(known, self._type), query).column(0).to_pylist())
        return [n for n in range(len(ends)) if n not in known or n in hit]

    def pick(self, rows: pa.Table) -> Numbers:
        """Return the numbers, in any order, of the rows that have one of the keys; `rows` has the key's columns."""
        named = [f"k{n}" for n in range(len(self.names))]
        given = rows.rename_columns(named).append_column("n", pa.array(np.arange(len(rows))))
        same = " AND ".join(f"r.{name} = c.c{i}" for name, i in zip(named, self._at, strict=True))
        query = f"SELECT r.n FROM {{}} r LEFT SEMI JOIN {self._changes} c ON {same}"  # noqa: S608  cdcflow's own
        found: Numbers = self._session.over(given, query).column(0).to_numpy()
        return found


def _bounds(known: Mapping[int, Ends], wanted: pa.DataType) -> pa.Table:
    is_text = all(isinstance(end, str) for pair in known.values() for end in pair)
    held = pa.string() if is_text else pa.int32() if pa.types.is_date(wanted) else pa.int64()
    ends = [pa.array([pair[i] for pair in known.values()], held).cast(wanted) for i in (0, 1)]
    return pa.table([pa.array(list(known), pa.int32()), *ends], names=["n", "least", "greatest"])

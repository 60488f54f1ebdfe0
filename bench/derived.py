"""What a derived table costs: a cycle of 1,000 changes, next to the computing of the whole table.

`python -m bench.derived --rows 10000000` prints both, for keys at random in the files and for keys in order. "sums",
"having" and "means" are continued from the changed rows; for "doubles" all rows of the changed groups are read. Some of
the last cycles have what a new process has: the files that earlier ones stored. One follows a compaction of half of the
files with orders. `--keys text` gives customers texts as their keys.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.tables.cut import CutTable
from cdcflow.tables.local import compaction, decoded_columns, file_keys, table_files, value_places
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.scan import RowMarks
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.merge.policy import DerivedQuery
from cdcflow.tables.port import Deriver

CHANGES = 1000
CYCLES, COMPACTED, FRESH_CYCLES = 6, 5, 3
ROWS_AT_ONCE = 1 << 20
JOINED = "FROM orders AS o JOIN customers AS c ON o.customer_id = c.id"
SUMS = f"SELECT o.customer_id, c.name, count(*) AS n, sum(o.amount) AS total {JOINED} GROUP BY o.customer_id, c.name"
QUERIES = {
    "sums": SUMS,
    "having": f"{SUMS} HAVING sum(o.amount) > 20000",
    "means": "SELECT customer_id, count(*) AS n, avg(amount) AS mean FROM orders GROUP BY customer_id",
    "doubles": "SELECT customer_id, sum(CAST(amount AS DOUBLE)) AS total FROM orders GROUP BY customer_id",
    "rows": f"SELECT o.id, o.amount, c.name {JOINED}",
}


Cost = tuple[float, float]
"""Seconds by the clock, and of CPU."""


class Shop:
    """A table of orders and one of customers, in a warehouse."""

    def __init__(self, engine: LocalEngine, rows: int, *, in_order: bool, keys: str) -> None:
        self._engine = engine
        self._rows = rows
        self._in_order = in_order
        self._chance = np.random.default_rng(1)
        customers = self._chance.integers(0, rows // 10, rows)
        names = np.arange(rows // 10)
        ids = _as_keys(names, keys)
        self._write("customers", {"id": ids, "name": np.char.add("customer ", names.astype(str))})
        self._write(
            "orders",
            {
                "id": np.arange(rows),
                "customer_id": _as_keys(np.sort(customers) if in_order else customers, keys),
                "amount": self._chance.integers(0, 10_000, rows),
            },
        )

    def _write(self, name: str, columns: Mapping[str, Any]) -> None:
        rows = pa.table({**columns, "_offset": np.zeros(len(next(iter(columns.values()))), np.int64)})
        with closing(self._engine.table(("public", name))) as there:
            there.create(rows.schema, {}, {})
            there.snapshot()
            parts = (rows.slice(first, ROWS_AT_ONCE) for first in range(0, len(rows), ROWS_AT_ONCE))
            there.load(parts, {}, f"bench/{name}", 1)

    def change(self) -> None:
        """Give some orders other amounts, as a merge does: marked in their files, and added in another."""
        first = self._chance.integers(0, self._rows - CHANGES)
        ids = np.arange(first, first + CHANGES)
        if not self._in_order:
            ids = np.sort(self._chance.choice(self._rows, CHANGES, replace=False))
        with closing(self._engine.table(("public", "orders"))) as there:
            there.snapshot()
            found = [self._marked(there, file, ids) for file in there.files()]
            rows = pa.concat_tables([rows for rows, _ in found])
            amounts = pa.array(self._chance.integers(0, 10_000, len(rows)))
            rows = rows.set_column(rows.schema.get_field_index("amount"), "amount", amounts)
            there.replace([], rows, {}, "bench", 2, [marks for _, marks in found if marks is not None])

    @staticmethod
    def _marked(there: FileTable[Any], file: Any, ids: Any) -> tuple[pa.Table, tuple[Any, Any] | None]:
        with there.open_file(file) as opened:
            held = opened.read(opened.groups, ["id"]).column(0).to_numpy()
            numbers = np.setdiff1d(np.flatnonzero(np.isin(held, ids)), opened.deleted_rows)
            marks = (file, RowMarks.of(opened.deleted_rows, numbers)) if len(numbers) else None
            return opened.take(numbers, there.schema.names), marks

    def compact(self) -> None:
        """Write half of the table's files again, as a thread of maintenance does."""
        with closing(self._engine.table(("public", "orders"))) as there:
            there.snapshot()
            files = sorted(there.files(), key=there.size_of)[::-2]
            done = compaction.rewrite(there, files, there.recall_rows(files), ())
            if not compaction.finish(there, done):
                raise RuntimeError("the files do not fit the table")

    def entry(self, *path: str) -> CutTable:
        with closing(self._engine.table(path)) as there:
            found = there.snapshot()
            assert found is not None
            return CutTable("/".join(path), found.version, True, id=found.id, commit=found.commit)

    def inputs(self) -> dict[str, CutTable]:
        return {f"public.{name}": self.entry("public", name) for name in ("orders", "customers")}


def _as_keys(numbers: Any, kind: str) -> Any:
    """Return numbers, or texts of the length of a UUID."""
    if kind == "numbers":
        return numbers
    return pc.binary_join_element_wise(
        "4f1c2f52-7a86-4b0e-9c55-", pc.utf8_lpad(pa.array(numbers).cast("string"), 12, "0"), ""
    )


def forget() -> None:
    """Forget what a process ends with."""
    for known in (decoded_columns.DECODED, value_places.PLACES, file_keys.KNOWN):
        known.forget_all()
    table_files.WRITTEN.forget_all()


def seconds(work: Callable[[], object]) -> Cost:
    began = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def run(
    folder: Path, rows: int, format_: str, query: DerivedQuery, *, in_order: bool, keys: str
) -> tuple[Cost, list[Cost]]:
    """Return what the whole table costs, and each cycle."""
    folder.mkdir()
    forget()
    with closing(LocalEngine(folder, format_)) as engine:
        shop, deriver = Shop(engine, rows, in_order=in_order, keys=keys), engine.deriver()
        before = shop.inputs()
        whole = seconds(lambda: deriver.derive("derived.totals", query, before, {}, None, 1))
        cycles = []
        for cut in range(2, CYCLES + FRESH_CYCLES + 2):
            if cut == COMPACTED + 1:
                shop.compact()
            shop.change()
            if cut >= CYCLES + 2:
                forget()
                deriver = engine.deriver()
            cycles.append(cycle(deriver, shop, query, before, cut))
            before = shop.inputs()
        return whole, cycles


def cycle(deriver: Deriver, shop: Shop, query: DerivedQuery, before: Mapping[str, CutTable], cut: int) -> Cost:
    after, shown = shop.inputs(), shop.entry("derived", "totals")
    return seconds(lambda: deriver.derive("derived.totals", query, after, before, shown, cut))


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--rows", type=int, default=1_000_000)
    given.add_argument("--format", default="delta", choices=["delta", "iceberg"])
    given.add_argument("--query", default="sums", choices=list(QUERIES))
    given.add_argument("--keys", default="numbers", choices=["numbers", "text"])
    chosen = given.parse_args()
    query = DerivedQuery(("id",) if chosen.query == "rows" else ("customer_id",), QUERIES[chosen.query])
    for in_order in (True, False):
        with tempfile.TemporaryDirectory(prefix="cdcflow-bench-") as folder:
            place = Path(folder) / "warehouse"
            whole, cycles = run(place, chosen.rows, chosen.format, query, in_order=in_order, keys=chosen.keys)
        print(f"keys {'in order' if in_order else 'at random'}: whole {whole[0]:.2f} s, {whole[1]:.2f} s of CPU")
        for number, one in enumerate(cycles, 1):
            parts = ", ".join(f"1/{all_ / part:.0f}" for all_, part in zip(whole, one, strict=True))
            process = " in a new process" if number > CYCLES else " after a compaction" if number == COMPACTED else ""
            print(
                f"  cycle {number}{process}, {CHANGES} changes: {one[0]:.3f} s, {one[1]:.3f} s of CPU: {parts} of that"
            )


if __name__ == "__main__":
    main()

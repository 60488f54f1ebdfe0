"""What row rules cost: nanoseconds per change for a filter and for computed columns, over batches of changes.

`python -m bench.row_rules` prints them next to the time that copying the same columns takes, which is the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from cdcflow.config.columns import TableRules
from cdcflow.model.change import ChangeBatch, Run
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.stream import run_leaving

ROWS = 65_536
ROUNDS = 15
TYPES = {
    "id": ("bigint", pa.int64()),
    "tenant_id": ("integer", pa.int32()),
    "status": ("text", pa.string()),
    "total": ("numeric(12,2)", pa.decimal128(12, 2)),
    "created_at": ("timestamp with time zone", pa.timestamp("us", tz="UTC")),
    "address": ("jsonb", pa.string()),
    "note": ("text", pa.string()),
}
RULES: Mapping[str, Mapping[str, object]] = {
    "where: all rows fit": {"where": "tenant_id < 10 AND status <> 'draft'"},
    "where: half of them": {"where": "tenant_id < 5 AND status <> 'draft'"},
    "where: one in ten": {"where": "tenant_id = 7"},
    "rename": {"columns": {"total": {"rename": "amount"}}},
    "computed: date_trunc": {"computed": {"day": "date_trunc('day', created_at)"}},
    "computed: decimal": {"computed": {"gross": "total * 1.19"}},
    "computed: JSON": {"computed": {"city": "address->>'$.city'"}},
}


def run_of(identity: Identity) -> Run:
    """Half inserts and half updates, each with distinct texts."""
    columns = tuple(Column(name, i, ColumnType(*one)) for i, (name, one) in enumerate(TYPES.items()))
    table = Table(TableId("public", "orders"), 1, columns, ("id",), identity)
    at = np.arange(ROWS)
    values = {
        "id": pa.array(at),
        "tenant_id": pa.array(at % 10, pa.int32()),
        "status": pa.array(np.where(at % 3 == 0, "paid", "sent")),
        "total": pa.array(at * 7 % 100_000).cast(pa.decimal128(20, 0)).cast(pa.decimal128(12, 2), safe=False),
        "created_at": pa.array(at * 1_000_003 + 1_700_000_000_000_000).cast(pa.timestamp("us", tz="UTC")),
        "address": pa.array([f'{{"city": "Bonn {i}", "street": "Rheinweg", "floor": {i % 9}}}' for i in at]),
        "note": pa.array([f"note {i}" for i in at]),
    }
    is_update = pa.array(at % 2 == 1)
    rows = pa.StructArray.from_arrays(
        [values[f.name] for f in table.before_type],
        fields=list(table.before_type),
        mask=pa.array(at % 2 == 0) if identity is Identity.FULL else pa.array(np.ones(ROWS, np.bool_)),
    )
    ops = pa.compute.if_else(is_update, "u", "c")
    unchanged = pa.nulls(ROWS, table.change_schema.field("_unchanged").type)
    batch = pa.RecordBatch.from_arrays([*values.values(), ops, unchanged, rows], schema=table.change_schema)
    ends = np.arange(1, ROWS + 1)
    return Run(at.astype(np.uint64), pa.array(map(str, at)), at, ends, (ChangeBatch(table, at, batch),))


def nanoseconds(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2] * 1e9 / ROWS


def main() -> None:
    for identity in (Identity.KEY, Identity.FULL):
        print(f"old rows: {identity.value}")
        for name, cost in costs(run_of(identity)):
            print(f"  {name:24} {cost:6.0f} ns per change")


def costs(run: Run) -> Iterator[tuple[str, float]]:
    everything = pa.array(np.arange(ROWS))
    yield "copy of the columns", nanoseconds(lambda: run.batches[0].rows.take(everything))
    for name, given in RULES.items():
        rules = PolicyRules({"public.*": TableRules.model_validate(given)})
        yield name, nanoseconds(partial(run_leaving, run, rules, {}))


if __name__ == "__main__":
    main()

"""The operations of a party of the table benches without Spark (see `bench.children.tables`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from bench.children.lookedafter import looked_after


def commands(table_format: str) -> Mapping[str, Callable[..., Any]]:
    return {
        "merge": partial(merged, table_format=table_format),
        "merge_auto": partial(merged, table_format=table_format),
        "upkeep": partial(upkept, table_format=table_format),
        "scan": partial(scan, table_format=table_format),
    }


def merged(log: str, warehouse: str, table_format: str, mode: Any = None) -> dict[str, Any]:
    from cdcflow import local
    from cdcflow.tables.merge.policy import Policies, TablePolicy

    return {
        "cut": local.merge(log, warehouse, table_format=table_format, policies=Policies(TablePolicy(mode))).cut,
        "engine": "local",
    }


def upkept(warehouse: str, table_format: str, **policy: float) -> dict[str, Any]:
    from cdcflow.local import local_engine
    from cdcflow.tables.job.engines import Engines

    with closing(local_engine(Path(warehouse), table_format)) as engine:
        return looked_after(Engines(engine), policy)


def scan(warehouse: str, table_format: str) -> dict[str, Any]:
    """The latest version of the table as Arrow; DuckDB reads every value."""
    from cdcflow.local import local_engine

    with (
        closing(local_engine(Path(warehouse), table_format)) as engine,
        closing(engine.table(("shop", "large"))) as there,
    ):
        there.snapshot()
        return _read(there.rows())


def _read(rows: pa.Table) -> dict[str, Any]:
    values = ", ".join(f'"{name}"' for name in rows.column_names if name != "_missing")
    with duckdb.connect() as session:
        session.register("rows", rows)
        found = session.execute(f"SELECT count(*), max(hash({values})) FROM rows").fetchone()
    assert found is not None
    return {"rows": found[0], "hash": str(found[1])}
